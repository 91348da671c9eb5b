"""StepExchange: the exchanges of one step, pending until all ranks know whether the step was good."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import (
    Context,
    FlattenBuffer,
    Program,
    ProtocolError,
    Reduced,
    World,
    all_finite,
    cast_saturating,
    fuse,
    fuse_flagged,
)
from .memories import LayerMemories
from .planning import Planning

log = logging.getLogger("thinwire")


@dataclass
class OpenStep:
    """What is known of a step so far."""

    pending: dict[str, Any] = field(default_factory=dict)  # states by layer
    buckets: int = 0  # exchanges
    bad: bool = False  # for all ranks
    alone: bool = False  # bad for this rank, while its partners go on without it
    failed: bool = False  # an exchange raised, or was closed before its end


class Bucket(NamedTuple):
    """One exchange of a step."""

    at: int  # its place among them
    ctx: Context
    given: dict[str, Tensor]
    bad: bool  # this rank's tensors are not finite
    programs: list[Program[Reduced[Any]]]


class StepExchange:
    """One step after another. A step of which an exchange failed commits nothing."""

    def __init__(self, memories: LayerMemories, planning: Planning, waits: bool) -> None:
        self.memories, self.planning = memories, planning
        self.flatten_buffer = FlattenBuffer(
            memories.aggregators, list(memories.layers.values())
        )  # layers that are exchanged as one
        if not waits:
            self.flatten_buffer.disable()
        self.skipped = 0
        self._open = OpenStep()

    def exchange(
        self, tensors: Mapping[str, Tensor], step: int, world: World, into: Mapping[str, Tensor] | None
    ) -> Program[dict[str, Tensor]]:
        open_step = self._open  # an exchange that ends late, or is closed late, says nothing of the step after it
        try:
            self._check(open_step, tensors, step)
            if self.flatten_buffer.names:
                tensors, into = self.flatten_buffer.complete(tensors, into)
                if self.flatten_buffer.held and not tensors:
                    return {}  # all of them wait: there is nothing to say yet
            bucket = self._encode(open_step, tensors, step, world)
            outs, anywhere_bad = yield from fuse_flagged(bucket.programs, bucket.bad, step)
            return self._decode(open_step, bucket, outs, anywhere_bad, into)
        except BaseException:
            open_step.failed = True
            raise

    def send(self, tensors: Mapping[str, Tensor], step: int, world: World) -> Program[bool]:
        open_step = self._open
        try:
            self._check(open_step, tensors, step)
            bucket = self._encode(open_step, tensors, step, world)
            outs = yield from fuse(bucket.programs, step)
        except BaseException:
            open_step.failed = True
            raise
        open_step.bad |= bucket.bad
        open_step.pending |= {name: out.state for name, out in zip(bucket.given, outs, strict=True)}
        return not bucket.bad

    def _encode(self, open_step: OpenStep, tensors: Mapping[str, Tensor], step: int, world: World) -> Bucket:
        """The layers' programs; zeros for all if one is not finite."""
        memories, ctx = self.memories, self.planning.context(step, world)
        if not open_step.buckets:
            self.planning.start_clock()
        at, open_step.buckets = open_step.buckets, open_step.buckets + 1
        bad = [name for name, tensor in tensors.items() if not all_finite(tensor)]
        if bad:
            log.warning("step %d: rank %d has NaN or Inf in %s; the step is skipped", step, world.rank, ", ".join(bad))
        given = {name: torch.zeros_like(t) if bad else t.detach() for name, t in tensors.items()}
        programs = [
            memories.aggregator(n).reduce(t, memories.layers[n], memories.states[n], ctx) for n, t in given.items()
        ]
        return Bucket(at, ctx, given, bool(bad), programs)

    def _decode(
        self,
        open_step: OpenStep,
        bucket: Bucket,
        outs: Sequence[Reduced[Any]],
        anywhere_bad: bool,
        into: Mapping[str, Tensor] | None,
    ) -> dict[str, Tensor]:
        """The averages; states are pending once there is nothing left that can fail."""
        reduced = dict(zip(bucket.given, outs, strict=True))
        open_step.bad |= anywhere_bad
        alone = bucket.bad and not anywhere_bad
        open_step.alone |= alone
        if not alone:
            self.planning.observe(reduced, bucket.given, bucket.at, bucket.ctx, self.memories.target)
        values = self._values(open_step.bad or open_step.alone, reduced, bucket.given, into)
        states = self.memories.states
        kept = {
            name: states[name] if out.state_if_excluded is None else out.state_if_excluded
            for name, out in reduced.items()
        }
        open_step.pending |= kept if alone else {name: out.state for name, out in reduced.items()}
        return values

    def _values(
        self,
        bad: bool,
        reduced: Mapping[str, Reduced[Any]],
        given: Mapping[str, Tensor],
        into: Mapping[str, Tensor] | None,
    ) -> dict[str, Tensor]:
        if into is None:
            if bad:
                return {name: torch.full_like(tensor, float("nan")) for name, tensor in given.items()}
            return {name: cast_saturating(out.value, self.memories.layers[name].dtype) for name, out in reduced.items()}
        for name, out in reduced.items():
            if bad:
                into[name].fill_(float("nan"))
            else:
                out.write_value(into[name])
        return dict(into)

    def discard(self, names: Iterable[str]) -> None:
        """Let these layers' memory be as if they had not been exchanged in this step."""
        for name in names:
            self._open.pending.pop(name, None)

    def settle(self, good: bool) -> bool:
        """Commit or drop what is pending; True if the step was good. One that failed is dropped and not counted."""
        ended = self._open
        if good and not (ended.buckets or ended.failed or self.flatten_buffer.held or self.planning.has_begun):
            return True  # no step is open
        missing = self.flatten_buffer.clear() if self.flatten_buffer.held else []
        if missing:
            log.warning("the step is skipped: what is exchanged as one waited in vain for %s", ", ".join(missing))
        if ended.failed:
            self.abandon()
            return False
        good = good and not ended.bad and not missing
        if good:
            self.memories.commit(ended.pending)
            self.planning.commit()
        good = good and not ended.alone
        self.skipped += not good
        self.abandon()
        return good

    def abandon(self) -> None:
        """Forget the open step, as if it had not begun."""
        if self.flatten_buffer.held:
            self.flatten_buffer.clear()
        self.planning.roll_back()
        self._open = OpenStep()

    def _check(self, open_step: OpenStep, tensors: Mapping[str, Tensor], step: int) -> None:
        layers = self.memories.layers
        for name, tensor in tensors.items():
            spec = layers.get(name)
            if spec is None:
                raise KeyError(f"Exchanger: no layer is called {name!r}; there are {list(layers)}")
            if (tuple(tensor.shape), tensor.dtype) != (spec.shape, spec.dtype):
                got = f"{tuple(tensor.shape)} {tensor.dtype}"
                raise ValueError(f"Exchanger: layer {name} is {spec.shape} {spec.dtype}, got {got}")
            if name in open_step.pending or name in self.flatten_buffer.held:
                raise ProtocolError(
                    f"step {step}: layer {name} was exchanged already; call begin() or settle() between"
                )
