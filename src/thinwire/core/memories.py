"""The protocol of memories: what a layer would send now, and what becomes of what it has not sent yet.

A memory is an aggregator whose state may hold something that is still to be sent. The functions here serve every part:
one that does not keep the protocol owes nothing, and what it remembers (PowerSGD's factors) is good for an equal part
only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar, runtime_checkable

from torch import Tensor

from .capabilities import Capability, has
from .composition import parts_of
from .context import Context
from .errors import IncompatibleParts
from .parts import Aggregator, Compressor
from .state import flatten_state, mean_state
from .tensors import TensorSpec
from .topology import tracks_peer_copies

S = TypeVar("S")

OWN = "state"  # the kind of what no other part can use
MAX_NAMES = 3


class Held(NamedTuple):
    """One thing that a memory holds, by what it means."""

    kind: str  # "residual", "velocity", "estimate", or OWN
    part: Any  # the part that holds it
    value: Any  # a residual or velocity: a tensor of the layer's work_dtype; else what `adopt` of an equal kind takes
    loss: str  # what is lost if no part adopts it


def _begin_anew(state: Any, fresh: Any) -> Any:
    return fresh


class SendForm(NamedTuple):
    """A composition without the other ranks: what one worker sends to a server, and how the server reads it."""

    compressor: Compressor | None  # that encodes and decodes what travels; None: tensors as they are
    assemble: Callable[[Aggregator[Any]], Aggregator[Any]]  # the worker's composition around one that sends just that
    believes: bool = False  # only changes travel, so the server keeps an estimate of each worker's tensor and adds them
    restart: Callable[[Any, Any], Any] = _begin_anew  # (state, fresh state) -> state, if the server lost its estimates

    @classmethod
    def alone(cls, compressor: Compressor | None) -> SendForm:
        """Of an aggregator that sends one payload and keeps nothing."""
        return cls(compressor, lambda sender: sender)


@runtime_checkable
class SendsAlone(Protocol):
    """An aggregator that can work for a server: what it sends does not depend on answers of other ranks."""

    def send_form(self) -> SendForm: ...


@runtime_checkable
class Memory(Aggregator[S], Protocol[S]):
    """An aggregator that remembers what was not sent, or hands this through to the parts inside."""

    def target(self, tensor: Tensor, spec: TensorSpec, state: S, ctx: Context) -> Tensor:
        """What the compressor inside would be given for this tensor, in the layer's work_dtype."""
        ...

    def hand_over(self, state: S, spec: TensorSpec) -> list[Held]:
        """All that it and the parts inside hold, for another composition to adopt."""
        ...

    def adopt(self, state: S, spec: TensorSpec, held: Sequence[Held], ctx: Context) -> tuple[S, list[Held]]:
        """The state with what this part and those inside can use of it, and the rest."""
        ...

    def merge(self, states: Sequence[S], spec: TensorSpec) -> S:
        """One rank's state out of those of a world of another size: mean residuals lose nothing."""
        ...

    def give_back(self, tensor: Tensor, spec: TensorSpec, state: S, ctx: Context) -> S:
        """The state after this tensor's message was refused: what it said waits for the next one."""
        ...

    def send_form(self) -> SendForm:
        """How it talks to a server; IncompatibleParts if it needs all ranks at once."""
        ...


@cache
def _keeps_memory(kind: type) -> bool:
    return issubclass(kind, Memory)  # remembered: asked for each layer at each step


def is_memory(part: object) -> TypeGuard[Memory[Any]]:
    kind: type = type(part)
    return _keeps_memory(kind)


class OwnState:
    """The protocol of memories for parts whose state an equal part alone can use, and which owe nothing."""

    def target(self, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Tensor:
        return tensor.to(spec.work_dtype)

    def hand_over(self, state: Any, spec: TensorSpec) -> list[Held]:
        return _hand_over_own(self, state)

    def adopt(self, state: Any, spec: TensorSpec, held: Sequence[Held], ctx: Context) -> tuple[Any, list[Held]]:
        return _adopt_own(self, state, held)

    def merge(self, states: Sequence[Any], spec: TensorSpec) -> Any:
        return mean_state(states)

    def give_back(self, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Any:
        return state

    def send_form(self) -> SendForm:
        raise needs_all_ranks(self)


def target_of(part: Any, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Tensor:
    """What the compressor inside a part would be given for this tensor, in the layer's work_dtype."""
    return part.target(tensor, spec, state, ctx) if is_memory(part) else tensor.to(spec.work_dtype)


def held_by(part: Any, state: Any, spec: TensorSpec) -> list[Held]:
    """All that a part and those inside hold."""
    return part.hand_over(state, spec) if is_memory(part) else _hand_over_own(part, state)


def adopt_into(part: Any, state: Any, spec: TensorSpec, held: Sequence[Held], ctx: Context) -> tuple[Any, list[Held]]:
    """A part's state with what it can use of `held`, and the rest."""
    return part.adopt(state, spec, held, ctx) if is_memory(part) else _adopt_own(part, state, held)


def merge_memories(part: Any, states: Sequence[Any], spec: TensorSpec) -> Any:
    """One state out of those of several ranks."""
    return part.merge(states, spec) if is_memory(part) else mean_state(states)


def give_back_to(part: Any, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Any:
    """A part's state after this tensor's message was refused; without a memory it is lost."""
    return part.give_back(tensor, spec, state, ctx) if is_memory(part) else state


def send_form_of(part: Any) -> SendForm:
    """How a part talks to a server; one that needs an answer from the other ranks is refused, by name."""
    if isinstance(part, SendsAlone):
        return part.send_form()
    raise needs_all_ranks(part)


def send_form_around(part: Any) -> SendForm:
    """The form of a memory that is a dataclass with `inner` and has a state with `inner`, and sends no differences."""
    form = send_form_of(part.inner)
    return SendForm(
        form.compressor,
        lambda sender: replace(part, inner=form.assemble(sender)),
        form.believes,
        lambda state, fresh: state._replace(inner=form.restart(state.inner, fresh.inner)),
    )


def needs_all_ranks(part: Any) -> IncompatibleParts:
    return IncompatibleParts(
        f"{type(part).__name__} needs all ranks at once, a worker of a server is alone with it; a compressor would do, "
        'plain or in ef, ef21, scam or dgc: "ef(topk(density=0.01))"'
    )


def check_inner(memory: str, inner: Aggregator[Any], sends_differences: bool = False) -> None:
    """Raise IncompatibleParts unless a memory may wrap `inner`: an aggregator without a memory of the same error.

    Args:
        memory: the name of the memory, for the error.
        inner: what it wraps.
        sends_differences: whether the memory sends differences itself (EF21), so that `inner` must not.
    """
    if not isinstance(inner, Aggregator) or isinstance(inner, type):
        raise IncompatibleParts(
            f"{memory} wraps an aggregator, got {type(inner).__name__}; wrap a compressor in an aggregator first, such "
            f"as GatherMean({type(inner).__name__}(...)). Composition texts do that by themselves"
        )
    for part in parts_of(inner):
        if has(part, Capability.KEEPS_RESIDUAL) or (sends_differences and has(part, Capability.SENDS_DIFFERENCES)):
            name = type(part).__name__
            raise IncompatibleParts(
                f"{memory} around {name}: both keep the same residual, which would be sent twice and grow without "
                f"bound; use one memory, {memory} or {name}"
            )
    if tracks_peer_copies(inner):
        raise IncompatibleParts(
            f"{memory} keeps what was not sent, and CHOCO loses nothing of its input; use choco(...) without a memory"
        )


def _hand_over_own(part: Any, state: Any) -> list[Held]:
    if not flatten_state(state):
        return []
    return [Held(OWN, part, state, "it begins anew; nothing that was to be sent is lost")]


def _adopt_own(part: Any, state: Any, held: Sequence[Held]) -> tuple[Any, list[Held]]:
    same = next((one for one in held if one.kind == OWN and one.part == part), None)
    return (state, list(held)) if same is None else (same.value, [one for one in held if one is not same])


def split_kind(held: Sequence[Held], kind: str) -> tuple[list[Held], list[Held]]:
    """Those of this kind, and the others."""
    return [one for one in held if one.kind == kind], [one for one in held if one.kind != kind]


def is_nothing(held: Held) -> bool:
    """Whether losing it loses nothing: zeros."""
    return not any(bool(t.any()) if isinstance(t, Tensor) else t for t in flatten_state(held.value).values())


class LayerMemory(NamedTuple):
    """One layer's composition and what it remembers."""

    part: Aggregator[Any]
    state: Any


def take_over(
    layers: Mapping[str, TensorSpec],
    new: Mapping[str, LayerMemory],
    old: Mapping[str, LayerMemory],
    ctx: Context,
) -> tuple[dict[str, Any], list[str]]:
    """The new composition's states with what they can use of the old one's; and what was dropped, in words."""
    states: dict[str, Any] = {}
    lost: dict[tuple[str, str, str, str], list[str]] = {}
    for name, spec in layers.items():
        (part, state), before = new[name], old.get(name)
        if before is None or before.part == part:
            states[name] = state if before is None else before.state
            continue
        states[name], rest = adopt_into(part, state, spec, held_by(before.part, before.state, spec), ctx)
        for held in rest:
            if not is_nothing(held):
                kinds = (type(held.part).__name__, held.kind, type(part).__name__, held.loss)
                lost.setdefault(kinds, []).append(name)
    texts = [
        f"{was}'s {kind} of {some_of(names)} is dropped, because {now} has no place for it: {loss}"
        for (was, kind, now, loss), names in lost.items()
    ]
    return states, texts


def some_of(names: Sequence[str]) -> str:
    """The first few names, and how many others there are."""
    shown = ", ".join(names[:MAX_NAMES])
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES} other layers"
