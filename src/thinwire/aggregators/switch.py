"""Aggregators with a menu: each layer is delegated to the option that the plan gives it.

`switch` takes its options as they are; `adapt` makes them by varying one setting, as L-GreCo does (Alimohammadi et al.,
2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from ..core import (
    Aggregator,
    Capabilities,
    Capability,
    CompositionError,
    Context,
    Controller,
    Key,
    LayerBatch,
    MemoryItem,
    Menu,
    Program,
    ProtocolError,
    Reduced,
    ReducedBatch,
    SendForm,
    TensorSpec,
    adopt_into,
    can_batch,
    flatten_state,
    fuse,
    give_back_to,
    join_reduced,
    memory_items,
    merge_memories,
    needs_all_ranks_error,
    reduce_tested,
    reduce_with_residual,
    target_of,
)
from .options import Variants, options_of


class SwitchState(NamedTuple):
    """The states of all options, so that a plan may return to an option. Variants of one method share a state."""

    states: tuple[Any, ...]


class MenuAggregator:
    """Base of `switch` and `adapt`: delegates each layer to one option of the menu."""

    capabilities: ClassVar[Capabilities] = frozenset(
        {Capability.LOSSLESS, Capability.FUSES_RESIDUAL, Capability.HAS_MENU, Capability.BATCHES_LAYERS}
    )

    menu: Menu
    state_index: tuple[int, ...]  # which of the states each option uses

    def init(self, spec: TensorSpec, key: Key) -> SwitchState:
        raise NotImplementedError

    def reduce(
        self, tensor: Tensor, spec: TensorSpec, state: SwitchState, ctx: Context
    ) -> Program[Reduced[SwitchState]]:
        option, index = self._get_option(spec, ctx)
        out = yield from option.reduce(tensor, spec, state.states[index], ctx)
        return _wrap_state(out, state, index)

    def reduce_with_residual(
        self, tensor: Tensor, residual: Tensor, spec: TensorSpec, state: SwitchState, ctx: Context
    ) -> Program[tuple[Reduced[SwitchState], Tensor]]:
        option, index = self._get_option(spec, ctx)
        out, rest = yield from reduce_with_residual(option, tensor, residual, spec, state.states[index], ctx)
        return _wrap_state(out, state, index), rest

    def reduce_many(self, batch: LayerBatch, ctx: Context) -> Program[ReducedBatch]:
        """Layers with the same option are a batch of it, if it can handle them in one call."""
        chosen = [(ctx.plan[spec.name], *self._get_option(spec, ctx)) for spec in batch.specs]
        inner = batch._replace(states=[s.states[i] for s, (_, _, i) in zip(batch.states, chosen, strict=True)])
        groups: dict[tuple[int, int], list[int]] = {}  # by option; those that it cannot batch each by themselves
        for i, (at, option, _) in enumerate(chosen):
            groups.setdefault((at, -1 if can_batch(option, batch.specs[i]) else i), []).append(i)
        programs = [
            (chosen[layers[0]][1].reduce_many if alone < 0 else partial(reduce_tested, chosen[layers[0]][1]))(  # type: ignore[attr-defined]
                inner.select(layers), ctx
            )
            for (_, alone), layers in groups.items()
        ]
        out = join_reduced(list(zip(groups.values(), (yield from fuse(programs)), strict=True)))
        triples = zip(batch.states, chosen, out.states, strict=True)
        states = [_with_state(state, index, new) for state, (_, _, index), new in triples]
        return out._replace(states=states, layer=lambda i: _wrap_state(out.layer(i), batch.states[i], chosen[i][2]))

    def target(self, tensor: Tensor, spec: TensorSpec, state: SwitchState, ctx: Context) -> Tensor:
        option, index = self._get_option(spec, ctx)
        return target_of(option, tensor, spec, state.states[index], ctx)

    def hand_over(self, state: SwitchState, spec: TensorSpec) -> list[MemoryItem]:
        """Of all options, also of those that the plan does not give: what they have kept is to be sent, too."""
        return [held for at, own in enumerate(state.states) for held in memory_items(self._owner(at), own, spec)]

    def adopt(
        self, state: SwitchState, spec: TensorSpec, held: Sequence[MemoryItem], ctx: Context
    ) -> tuple[SwitchState, list[MemoryItem]]:
        """The option that the plan gives comes first, so that its residual is sent soon; others may use the rest."""
        _, first = self._get_option(spec, ctx)
        states, rest = list(state.states), list(held)
        for index in (first, *(at for at in range(len(states)) if at != first)):
            states[index], rest = adopt_into(self._owner(index), states[index], spec, rest, ctx)
        return SwitchState(tuple(states)), rest

    def merge(self, states: Sequence[SwitchState], spec: TensorSpec) -> SwitchState:
        rows = zip(*(state.states for state in states), strict=True)
        return SwitchState(tuple(merge_memories(self._owner(at), own, spec) for at, own in enumerate(rows)))

    def give_back(self, tensor: Tensor, spec: TensorSpec, state: SwitchState, ctx: Context) -> SwitchState:
        """To the option that the plan gives, which has sent it."""
        option, index = self._get_option(spec, ctx)
        return _with_state(state, index, give_back_to(option, tensor, spec, state.states[index], ctx))

    def send_form(self) -> SendForm:
        raise needs_all_ranks_error(self)  # a plan is agreed by all ranks

    def _owner(self, index: int) -> Aggregator[Any]:
        """Of the options that share a state, the one that made it."""
        options = zip(reversed(self.menu.options), reversed(self.state_index), strict=True)
        return next(option for option, at in options if at == index)

    def _get_option(self, spec: TensorSpec, ctx: Context) -> tuple[Aggregator[Any], int]:
        """The option that the plan gives a layer, and the index of its state."""
        at = ctx.plan[spec.name]
        if not 0 <= at < len(self.menu.options):
            raise ProtocolError(
                f"step {ctx.step}: the plan gives {spec.name} option {at}, the menu has {len(self.menu.options)}"
            )
        return self.menu.options[at], self.state_index[at]


MAX_FACTOR = 1000  # options are built one by one, so a menu without a bound could fill the memory


@dataclass(frozen=True)
class Switch(MenuAggregator):
    """Delegate each layer to the option that a controller chose; residuals outside survive a change of plan.

    ef(switch(topk(density=0.01), dense(), controller=by_size())). The first option is the default, and the option of
    all layers without a controller.
    """

    capabilities: ClassVar[Capabilities] = MenuAggregator.capabilities | frozenset({Capability.ACCEPTS_MOMENT_PAIRS})

    options: tuple[Aggregator[Any], ...]
    controller: Controller[Any] | None = None

    def __post_init__(self) -> None:
        if not self.options:
            raise CompositionError("Switch: the menu is empty; write for example switch(topk(density=0.01), dense())")

    @cached_property
    def menu(self) -> Menu:  # type: ignore[override]
        return Menu(self.options)

    @cached_property
    def state_index(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(range(len(self.options)))

    def init(self, spec: TensorSpec, key: Key) -> SwitchState:
        return SwitchState(tuple(option.init(spec, key) for option in self.options))


@dataclass(frozen=True)
class Adapt(MenuAggregator):
    """Build variants of each method (density ×0.1–10, bits or rank ×0.5–2) and let a controller pick one per layer.

    Densities are varied in steps of a tenth of the given one, bits and ranks in steps of one; `min_factor` and
    `max_factor` set another range. The first method as it is given is the default. Variants of a method share one
    state: of PowerSGD's factors a smaller rank uses the first columns, a larger one keeps all. The ranges are those of
    L-GreCo (Alimohammadi et al., 2024).
    """

    methods: tuple[Aggregator[Any], ...]
    controller: Controller[Any] | None = None
    min_factor: float | None = None
    max_factor: float | None = None

    def __post_init__(self) -> None:
        if not self.methods:
            raise CompositionError("Adapt: no method is given; write adapt(topk(density=0.01), controller=lgreco())")
        if self.controller is None:
            raise CompositionError(
                "Adapt: no controller is given; write for example adapt(topk(density=0.01), controller=lgreco())"
            )
        for name, value in (("min_factor", self.min_factor), ("max_factor", self.max_factor)):
            if value is not None and not 1 / MAX_FACTOR <= value <= MAX_FACTOR:
                raise CompositionError(
                    f"Adapt: {name} multiplies the given density, bits or rank and must be between 1/{MAX_FACTOR} and "
                    f"{MAX_FACTOR}, got {value}; 0.5 is an example"
                )
        if (self.min_factor or 0) > 1 or (self.max_factor or 2) < 1:
            raise CompositionError(
                "Adapt: min_factor must be at most 1 and max_factor at least 1, so that the given value is an option, "
                f"got min_factor={self.min_factor} and max_factor={self.max_factor}"
            )
        if len(self.menu.options) < 2:
            raise CompositionError(
                f"Adapt: {type(self.methods[0]).__name__} has no density, bits or rank to vary; add a second method"
            )

    @cached_property
    def _variants(self) -> tuple[Variants, ...]:
        return tuple(options_of(method, self.min_factor, self.max_factor) for method in self.methods)

    @cached_property
    def menu(self) -> Menu:  # type: ignore[override]
        options = tuple(option for variants in self._variants for option in variants.options)
        return Menu(options, self._variants[0].default)

    @cached_property
    def state_index(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(at for at, variants in enumerate(self._variants) for _ in variants.options)

    def init(self, spec: TensorSpec, key: Key) -> SwitchState:
        return SwitchState(tuple(_init_largest(variants.options, spec, key) for variants in self._variants))


def _init_largest(options: tuple[Aggregator[Any], ...], spec: TensorSpec, key: Key) -> Any:
    """The state of the largest option that has one for this layer: beyond it, layers may be sent dense."""
    for option in reversed(options):
        state = option.init(spec, key)
        if any(not isinstance(leaf, Tensor) or leaf.numel() for leaf in flatten_state(state).values()):
            break
    return state


def _wrap_state(out: Reduced[Any], state: SwitchState, index: int) -> Reduced[SwitchState]:
    """What an option returned, with the states of all options."""
    state_if_excluded = None if out.state_if_excluded is None else _with_state(state, index, out.state_if_excluded)
    return out.with_state(_with_state(state, index, out.state), state_if_excluded)


def _with_state(state: SwitchState, index: int, new: Any) -> SwitchState:
    return SwitchState((*state.states[:index], new, *state.states[index + 1 :]))
