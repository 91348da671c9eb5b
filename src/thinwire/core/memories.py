"""The protocol of memories (error feedback and its relatives): the target of a layer, and what becomes of its state.

A memory is an aggregator with a state that may hold something still to be sent. The functions here accept any part:
one without the protocol has nothing left to send, and its state (PowerSGD's factors) is of use to an equal part only.
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

PRIVATE = "state"  # the kind of an item that only an equal part can use
MAX_NAMES = 3


class MemoryItem(NamedTuple):
    """One item of a memory's state, by its meaning, which another composition may adopt."""

    kind: str  # "residual", "velocity", "estimate", or PRIVATE
    part: Any  # the part that holds it
    value: Any  # of a residual or velocity a tensor of the layer's work_dtype; else what `adopt` accepts for this kind
    loss: str  # a text: what is lost if no part adopts it


def _use_fresh(state: Any, fresh: Any) -> Any:
    return fresh


class SendForm(NamedTuple):
    """The form of a composition for a worker of a server: what the worker sends, and how the server decodes it."""

    compressor: Compressor | None  # of the messages; None: dense tensors
    assemble: Callable[[Aggregator[Any]], Aggregator[Any]]  # the worker's composition, around an aggregator that sends
    sends_differences: bool = False  # so that the server must keep an estimate of each worker's tensor
    restart: Callable[[Any, Any], Any] = (
        _use_fresh  # (state, initial state) -> state after the server lost its estimates
    )

    @classmethod
    def single(cls, compressor: Compressor | None) -> SendForm:
        """For an aggregator that sends one payload and has no state."""
        return cls(compressor, lambda sender: sender)


@runtime_checkable
class SendsToServer(Protocol):
    """An aggregator that a server's worker can use: what it sends does not depend on answers of other ranks."""

    def send_form(self) -> SendForm: ...


@runtime_checkable
class Memory(Aggregator[S], Protocol[S]):
    """An aggregator that keeps what was not sent, or passes these calls to the parts inside."""

    def target(self, tensor: Tensor, spec: TensorSpec, state: S, ctx: Context) -> Tensor:
        """What this layer would send now: the input of the compressor inside, in the layer's work_dtype."""
        ...

    def hand_over(self, state: S, spec: TensorSpec) -> list[MemoryItem]:
        """The items of its state and of the parts inside, for another composition to adopt."""
        ...

    def adopt(
        self, state: S, spec: TensorSpec, items: Sequence[MemoryItem], ctx: Context
    ) -> tuple[S, list[MemoryItem]]:
        """The state with the items that this part and those inside can use, and the remaining items."""
        ...

    def merge(self, states: Sequence[S], spec: TensorSpec) -> S:
        """One state for each rank of a new world, out of the states of all old ranks; mean residuals lose nothing."""
        ...

    def give_back(self, tensor: Tensor, spec: TensorSpec, state: S, ctx: Context) -> S:
        """The state after the server rejected this tensor's message, so that it is sent with the next one."""
        ...

    def send_form(self) -> SendForm:
        """The form for a server's worker.

        Raises:
            IncompatibleParts: the part needs the answers of other ranks.
        """
        ...


@cache
def _keeps_memory(kind: type) -> bool:
    return issubclass(kind, Memory)  # cached: called for each layer at each step


def is_memory(part: object) -> TypeGuard[Memory[Any]]:
    """Whether a part has the protocol of memories."""
    kind: type = type(part)
    return _keeps_memory(kind)


class PrivateState:
    """The protocol of memories for parts with nothing left to send and a state that only an equal part can use."""

    def target(self, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Tensor:
        return tensor.to(spec.work_dtype)

    def hand_over(self, state: Any, spec: TensorSpec) -> list[MemoryItem]:
        return _private_items(self, state)

    def adopt(
        self, state: Any, spec: TensorSpec, items: Sequence[MemoryItem], ctx: Context
    ) -> tuple[Any, list[MemoryItem]]:
        return _adopt_private(self, state, items)

    def merge(self, states: Sequence[Any], spec: TensorSpec) -> Any:
        return mean_state(states)

    def give_back(self, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Any:
        return state

    def send_form(self) -> SendForm:
        raise needs_all_ranks_error(self)


def target_of(part: Any, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Tensor:
    """What a layer with this part would send now, in the layer's work_dtype."""
    return part.target(tensor, spec, state, ctx) if is_memory(part) else tensor.to(spec.work_dtype)


def memory_items(part: Any, state: Any, spec: TensorSpec) -> list[MemoryItem]:
    """The items of the state of a part and of the parts inside."""
    return part.hand_over(state, spec) if is_memory(part) else _private_items(part, state)


def adopt_into(
    part: Any, state: Any, spec: TensorSpec, items: Sequence[MemoryItem], ctx: Context
) -> tuple[Any, list[MemoryItem]]:
    """A part's state with the items that it can use, and the remaining items."""
    return part.adopt(state, spec, items, ctx) if is_memory(part) else _adopt_private(part, state, items)


def merge_memories(part: Any, states: Sequence[Any], spec: TensorSpec) -> Any:
    """One state out of the states of several ranks."""
    return part.merge(states, spec) if is_memory(part) else mean_state(states)


def give_back_to(part: Any, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Any:
    """A part's state after the server rejected this tensor's message; without a memory the message is lost."""
    return part.give_back(tensor, spec, state, ctx) if is_memory(part) else state


def send_form_of(part: Any) -> SendForm:
    """The form of a part for a server's worker.

    Raises:
        IncompatibleParts: the part needs the answers of other ranks.
    """
    if isinstance(part, SendsToServer):
        return part.send_form()
    raise needs_all_ranks_error(part)


def send_form_around(part: Any) -> SendForm:
    """The form of a memory that sends no differences, where both its dataclass and its state have a field `inner`."""
    form = send_form_of(part.inner)
    return SendForm(
        form.compressor,
        lambda sender: replace(part, inner=form.assemble(sender)),
        form.sends_differences,
        lambda state, fresh: state._replace(inner=form.restart(state.inner, fresh.inner)),
    )


def needs_all_ranks_error(part: Any) -> IncompatibleParts:
    """The error for a part that cannot be used by a server's worker."""
    return IncompatibleParts(
        f"{type(part).__name__} needs answers of all ranks, and a worker of a server has none; use a "
        'compressor, plain or in ef, ef21, scam or dgc: "ef(topk(density=0.01))"'
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


def _private_items(part: Any, state: Any) -> list[MemoryItem]:
    if not flatten_state(state):
        return []
    return [MemoryItem(PRIVATE, part, state, "it is initialized again; nothing that was still to be sent is lost")]


def _adopt_private(part: Any, state: Any, items: Sequence[MemoryItem]) -> tuple[Any, list[MemoryItem]]:
    same = next((item for item in items if item.kind == PRIVATE and item.part == part), None)
    return (state, list(items)) if same is None else (same.value, [item for item in items if item is not same])


def split_kind(items: Sequence[MemoryItem], kind: str) -> tuple[list[MemoryItem], list[MemoryItem]]:
    """The items of this kind, and the others."""
    return [item for item in items if item.kind == kind], [item for item in items if item.kind != kind]


def is_zero(item: MemoryItem) -> bool:
    """Whether the item is all zeros, so that dropping it loses nothing."""
    return not any(bool(t.any()) if isinstance(t, Tensor) else t for t in flatten_state(item.value).values())


class LayerMemory(NamedTuple):
    """The composition of one layer and its state."""

    part: Aggregator[Any]
    state: Any


def take_over(
    layers: Mapping[str, TensorSpec],
    new: Mapping[str, LayerMemory],
    old: Mapping[str, LayerMemory],
    ctx: Context,
) -> tuple[dict[str, Any], list[str]]:
    """Move the items of old states to a new composition.

    Args:
        layers: specs by layer name.
        new: the new composition with its initial states.
        old: the old composition with its states.
        ctx: the context of the change.

    Returns:
        The new states by layer, and one text for each kind of item that was dropped.
    """
    states: dict[str, Any] = {}
    dropped: dict[tuple[str, str, str, str], list[str]] = {}
    for name, spec in layers.items():
        (part, state), before = new[name], old.get(name)
        if before is None or before.part == part:
            states[name] = state if before is None else before.state
            continue
        states[name], rest = adopt_into(part, state, spec, memory_items(before.part, before.state, spec), ctx)
        for item in rest:
            if not is_zero(item):
                kinds = (type(item.part).__name__, item.kind, type(part).__name__, item.loss)
                dropped.setdefault(kinds, []).append(name)
    texts = [
        f"{owner}'s {kind} of {list_some(names)} is dropped, because {successor} cannot adopt it: {loss}"
        for (owner, kind, successor, loss), names in dropped.items()
    ]
    return states, texts


def list_some(names: Sequence[str]) -> str:
    """The first few names, and the number of others."""
    shown = ", ".join(names[:MAX_NAMES])
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES} other layers"
