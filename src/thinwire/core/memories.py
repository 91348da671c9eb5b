"""What a layer would send now, and what one composition's memory takes over from another's.

Both are optional methods of a part: `target`, and `holds` and `take`. A part without them has no error feedback; what
it remembers (PowerSGD's factors) is good for an equal part only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from .context import Context
from .parts import Aggregator
from .state import flatten_state
from .tensors import TensorSpec

OWN = "state"  # the kind of what no other part can use
MAX_NAMES = 3


class Held(NamedTuple):
    """One thing that a memory holds, by what it means."""

    kind: str  # "residual", "velocity", "estimate", or OWN
    part: Any  # the part that holds it
    value: (
        Any  # of a residual or a velocity a tensor of the layer's work_dtype; else what `take` of an equal kind takes
    )
    loss: str  # what is lost if no part takes it over


@runtime_checkable
class HasTarget(Protocol):
    """A part that changes what it is given before a compressor sees it."""

    def target(self, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Tensor:
        """What the compressor inside would be given for this tensor, in the layer's work_dtype."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """A part whose memory, or a share of it, can go to another composition."""

    def holds(self, state: Any, spec: TensorSpec) -> list[Held]:
        """All that it and the parts inside hold."""
        ...

    def take(self, state: Any, spec: TensorSpec, held: Sequence[Held], ctx: Context) -> tuple[Any, list[Held]]:
        """The state with what this part and those inside can use of it, and the rest."""
        ...


def target_of(part: Any, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Tensor:
    """What the compressor inside a part would be given for this tensor, in the layer's work_dtype."""
    own = getattr(part, "target", None)  # no isinstance: asked for each layer at each step
    return tensor.to(spec.work_dtype) if own is None else own(tensor, spec, state, ctx)


def held_by(part: Any, state: Any, spec: TensorSpec) -> list[Held]:
    if isinstance(part, Remembers):
        return part.holds(state, spec)
    if not flatten_state(state):
        return []
    return [Held(OWN, part, state, "it begins anew; nothing that was to be sent is lost")]


def give(part: Any, state: Any, spec: TensorSpec, held: Sequence[Held], ctx: Context) -> tuple[Any, list[Held]]:
    """A part's state with what it can use of `held`, and the rest."""
    if isinstance(part, Remembers):
        return part.take(state, spec, held, ctx)
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
        states[name], rest = give(part, state, spec, held_by(before.part, before.state, spec), ctx)
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
