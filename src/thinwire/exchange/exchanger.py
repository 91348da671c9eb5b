"""Exchanger: the layers of one worker, their aggregator, their controller and their memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor

from ..core import (
    Aggregator,
    CheckpointError,
    Controller,
    LayerMenus,
    LayerObservation,
    Plan,
    Program,
    TensorSpec,
    World,
    require_keys,
)
from ..importance import LayerImportance
from .memories import LayerMemories
from .planning import Planning
from .step import StepExchange

STORED = ("plan", "plans", "controller", "layers", "importance", "skipped_steps", "lr")


class Exchanger:
    """The only object with memory, keyed by layer name. It sends nothing: its methods are programs for a driver.

    A step is `begin`, one `exchange` for each group of layers (each layer once), `settle`; `round` is all three.
    What a step would change in the memory is pending until `settle`. If any rank had a NaN or an infinity, all
    ranks learn it with the answers of that exchange, get NaN for all its layers, and no memory changes; what earlier
    exchanges of that step gave must be dropped, too (`settle` says False). So it is if an exchange raised. Where ranks
    hear their partners only (gossip), these go on without that rank; it alone gets NaN, and keeps the memory that its
    partners believe it has.

    Args:
        layers: what may be exchanged; names must differ.
        aggregator: of all layers, or of each by name.
        controller: chooses for all layers that have a menu; without, that of each composition does.
        seed: of all randomness.
        waits: whether layers that are exchanged as one (`flatten`) wait over several exchanges for the last of them;
            False: what is in one exchange is the whole.
    """

    __slots__ = ("__weakref__", "_memories", "_planning", "_step")  # so that no other attribute can be set

    def __init__(
        self,
        layers: Sequence[TensorSpec],
        aggregator: Aggregator[Any] | Mapping[str, Aggregator[Any]],
        controller: Controller[Any] | None = None,
        seed: int = 0,
        waits: bool = True,
    ) -> None:
        names = [spec.name for spec in layers]
        if len(set(names)) != len(names):
            raise ValueError(f"Exchanger: layer names must differ, got {names}")
        rules = dict(aggregator) if isinstance(aggregator, Mapping) else dict.fromkeys(names, aggregator)
        if odd := sorted(rules.keys() ^ set(names)):
            raise ValueError(f"Exchanger: one aggregator per layer is needed; layers or aggregators alone: {odd}")
        self._planning = Planning(layers, rules, controller, seed)
        self._memories = LayerMemories(layers, rules, seed)
        self._step = StepExchange(self._memories, self._planning, waits)

    # A step

    def begin(self, step: int, world: World, lr: float | None = None) -> Program[None]:
        """Once per step, before its first exchange: settle the last step, then let the controller change the plan.

        lr: the learning rate, a clue for controllers; if it is not given, the one given last holds on.
        """
        self.settle()
        yield from self._planning.begin(step, world, lr)

    def exchange(
        self, tensors: Mapping[str, Tensor], step: int, world: World, into: Mapping[str, Tensor] | None = None
    ) -> Program[dict[str, Tensor]]:
        """Every rank's view of the averages of these layers, in the types of their specs.

        into: tensors to write them to, which may be the very ones that are exchanged. Layers that are exchanged as one
        (`flatten`) are answered with the last of them.
        """
        return self._step.exchange(tensors, step, world, into)

    def send(self, tensors: Mapping[str, Tensor], step: int, world: World) -> Program[bool]:
        """For a rank that talks to a server: what it sends is all there is, so no flag travels and no average is made.

        Returns:
            Whether the tensors are finite. If they are not, what was sent are zeros, and the step cannot be good.
        """
        return self._step.send(tensors, step, world)

    def round(
        self, tensors: Mapping[str, Tensor], step: int, world: World, lr: float | None = None
    ) -> Program[dict[str, Tensor]]:
        """A whole step for all layers at once."""
        yield from self.begin(step, world, lr)
        values = yield from self.exchange(tensors, step, world)
        self.settle()
        return values

    def keep_memory(self, names: Iterable[str]) -> None:
        """Let these layers' memory be as if they had not been exchanged in this step."""
        self._step.discard(names)

    def settle(self, good: bool = True) -> bool:
        """Commit the pending memory, or drop it if the step was bad anywhere; True if it was good. Local and silent.

        If it was bad here while partners went on, what they took from this rank is committed, and the answer is False.
        A caller that knows of something bad beside these layers says good=False; all ranks must say alike. A step of
        which an exchange raised is dropped, and not counted as skipped.
        """
        return self._step.settle(good)

    def abandon(self) -> None:
        """Forget the open step, as if it had not begun: it was bad, or something beside it failed. Local, silent."""
        self._step.abandon()

    # What it knows

    @property
    def layers(self) -> dict[str, TensorSpec]:
        return self._memories.layers

    @property
    def rules(self) -> Mapping[str, Aggregator[Any]]:
        """Aggregators by layer."""
        return self._memories.aggregators

    @property
    def memory(self) -> Mapping[str, Any]:
        """States by layer, after the settled steps; to be looked at."""
        return MappingProxyType(self._memories.states)

    @property
    def importance(self) -> LayerImportance:
        """w by layer, which parts like `impk` choose and weigh by; each rank has its own, and a layer without has ones.

        `exchanger.importance["conv1.weight"] = w` checks name, shape and numbers. It is stored with the memory.
        """
        return self._memories.importance

    @property
    def seed(self) -> int:
        return self._planning.seed

    @property
    def menus(self) -> LayerMenus:
        """Layers that have a menu."""
        return self._planning.menus

    @property
    def controller(self) -> Controller[Any]:
        return self._planning.controller

    @property
    def controller_state(self) -> Any:
        return self._planning.state

    @property
    def plan(self) -> Plan:
        return self._planning.plan

    @property
    def plans(self) -> list[tuple[int, Plan]]:
        """Every change of plan, with the step from which on it was in force."""
        return self._planning.plans

    @property
    def lr(self) -> float | None:
        """The learning rate that was given last."""
        return self._planning.lr

    @property
    def adapting_s(self) -> float:
        """What choosing has cost so far, waiting for others included."""
        return self._planning.seconds

    @property
    def skipped_steps(self) -> int:
        return self._step.skipped

    @property
    def waits_for(self) -> list[str]:
        """Layers that wait for one another over several exchanges of a step."""
        return self._step.flatten_buffer.names

    def targets(self, tensors: Mapping[str, Tensor], world: World | None = None) -> dict[str, Tensor]:
        """What each layer would send now: what its memory, after the settled steps, gives to the part inside.

        world: only dgc's clip depends on its size; without, it is that of the last step.
        """
        ctx = self._planning.context(0, self._planning.world if world is None else world)
        return {name: self._memories.target(name, tensor, ctx) for name, tensor in tensors.items()}

    def adaptation(self) -> dict[str, Any]:
        """What choosing has done: changes of plan, seconds it took here, and what the controller says of itself."""
        return self._planning.report()

    # What is told it beside steps

    def set_clock(self, clock: Callable[[], float] | None) -> None:
        """For controllers that choose by time; without one, runs repeat."""
        self._planning.clock = clock

    def set_watch(self, watch: Callable[[TensorSpec, LayerObservation], None] | None) -> None:
        """Call this for every layer that was exchanged."""
        self._planning.watch = watch

    def set_adapting_s(self, seconds: float) -> None:
        """Go on counting from here, in a run that is resumed."""
        self._planning.seconds = seconds

    def give_back(self, tensors: Mapping[str, Tensor], step: int, world: World) -> None:
        """The message of these layers was refused: what it said waits in their memories for the next one."""
        self._memories.give_back(tensors, self._planning.context(step, world))

    def restart(self, old: Exchanger, change: Callable[[Any, Any], Any]) -> None:
        """Go on from `old`, layer by layer with what `change` makes of its state and of ours, which is fresh."""
        self._memories.restart(old._memories, change)

    def take_over(self, old: Exchanger, step: int, world: World) -> list[str]:
        """Go on with another composition's memory, as far as this one has a place for it; what is dropped, in words.

        A controller goes on where it was if nothing changed for it. Holders of `old.importance` hold ours then.
        """
        old.settle()
        dropped = self._memories.take_over(old._memories, self._planning.context(step, world))
        dropped += self._planning.take_over(old._planning)
        self._step.skipped = old.skipped_steps
        return dropped

    # Stored

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers, enough to continue with the same next step."""
        self.settle()
        numbers = {"skipped_steps": self.skipped_steps, "lr": self.lr or 0.0}  # 0: not told
        return {**self._planning.state_dict(), **self._memories.state_dict(), **numbers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a stored memory; what is missing or does not fit is a CheckpointError, and nothing changes."""
        require_keys(state, STORED, "an Exchanger")
        memories, controller = self._memories.restored(state), self._planning.restored(state)
        self._memories.install(memories, state["importance"])
        self._planning.install(controller, state)
        self._load_numbers(state)
        self._step.abandon()

    def load_what_fits(self, state: Mapping[str, Any]) -> list[str]:
        """Take over what a stored state has for the layers here; what it has for others, or does not fit, in words."""
        require_keys(state, STORED, "an Exchanger")
        dropped = self._memories.load_what_fits(state)
        self._load_numbers(state)
        if state["layers"].keys() == self.layers.keys():
            try:
                self._planning.install(self._planning.restored(state), state)
            except CheckpointError as error:
                dropped.append(f"{error}: it begins anew")
        return dropped

    def _load_numbers(self, state: Mapping[str, Any]) -> None:
        self._step.skipped = int(state["skipped_steps"])
        self._planning.load_lr(state)

    def merged(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One rank's state out of those of a world of another size: mean residuals lose nothing."""
        for state in states:
            require_keys(state, STORED, "an Exchanger")
        memories, controller = self._memories.merged(states), self._planning.resized_state(states[0])
        return {**states[0], **memories, "controller": controller}
