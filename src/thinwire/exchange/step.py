"""StepExchange: the exchanges of one step; states are pending until all ranks know whether it was good."""

from __future__ import annotations

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
from ..core.logs import get_logger
from .memories import LayerMemories
from .planning import Planning

log = get_logger(__name__)


@dataclass
class OpenStep:
    """A step that was begun and not settled."""

    pending: dict[str, Any] = field(default_factory=dict)  # states by layer
    buckets: int = 0  # exchanges
    bad: bool = False  # on all ranks
    excluded: bool = False  # bad on this rank only; its neighbors go on without it
    failed: bool = False  # an exchange raised or was closed before its end


class Bucket(NamedTuple):
    """One exchange of a step: its layers and their programs."""

    number: int  # among the exchanges of the step, from 0
    ctx: Context
    tensors: dict[str, Tensor]
    bad: bool  # a tensor of this rank is not finite
    programs: list[Program[Reduced[Any]]]


class StepExchange:
    """Runs the exchanges of one step after another. A step with a failed exchange commits nothing."""

    def __init__(self, memories: LayerMemories, planning: Planning, wait_for_flattened: bool) -> None:
        self.memories, self.planning = memories, planning
        self.flatten_buffer = FlattenBuffer(memories.aggregators, list(memories.layers.values()))
        if not wait_for_flattened:
            self.flatten_buffer.disable()
        self.skipped = 0
        self._open = OpenStep()

    def exchange(
        self, tensors: Mapping[str, Tensor], step: int, world: World, into: Mapping[str, Tensor] | None
    ) -> Program[dict[str, Tensor]]:
        """See `Exchanger.exchange`."""
        open_step = self._open  # an exchange that ends after the step was settled must not change the next step
        try:
            self._check(open_step, tensors, step)
            if self.flatten_buffer.names:
                tensors, into = self.flatten_buffer.complete(tensors, into)
                if self.flatten_buffer.held and not tensors:
                    return {}  # all layers wait for others
            bucket = self._encode(open_step, tensors, step, world)
            outs, anywhere_bad = yield from fuse_flagged(bucket.programs, bucket.bad, step)
            return self._decode(open_step, bucket, outs, anywhere_bad, into)
        except BaseException:
            open_step.failed = True
            raise

    def send(self, tensors: Mapping[str, Tensor], step: int, world: World) -> Program[bool]:
        """See `Exchanger.send`."""
        open_step = self._open
        try:
            self._check(open_step, tensors, step)
            bucket = self._encode(open_step, tensors, step, world)
            outs = yield from fuse(bucket.programs, step)
        except BaseException:
            open_step.failed = True
            raise
        open_step.bad |= bucket.bad
        open_step.pending |= {name: out.state for name, out in zip(bucket.tensors, outs, strict=True)}
        return not bucket.bad

    def _encode(self, open_step: OpenStep, tensors: Mapping[str, Tensor], step: int, world: World) -> Bucket:
        """Start the programs of the layers, with zeros for all layers if one is not finite."""
        memories, ctx = self.memories, self.planning.context(step, world)
        if not open_step.buckets:
            self.planning.start_clock()
        number, open_step.buckets = open_step.buckets, open_step.buckets + 1
        bad = [name for name, tensor in tensors.items() if not all_finite(tensor)]
        if bad:
            log.warning("step %d: rank %d has NaN or Inf in %s; the step is skipped", step, world.rank, ", ".join(bad))
        inputs = {name: torch.zeros_like(t) if bad else t.detach() for name, t in tensors.items()}
        programs = [
            memories.aggregator(n).reduce(t, memories.layers[n], memories.states[n], ctx) for n, t in inputs.items()
        ]
        return Bucket(number, ctx, inputs, bool(bad), programs)

    def _decode(
        self,
        open_step: OpenStep,
        bucket: Bucket,
        outs: Sequence[Reduced[Any]],
        anywhere_bad: bool,
        into: Mapping[str, Tensor] | None,
    ) -> dict[str, Tensor]:
        """The averages. States become pending last, when nothing can fail any more."""
        reduced = dict(zip(bucket.tensors, outs, strict=True))
        open_step.bad |= anywhere_bad
        excluded = bucket.bad and not anywhere_bad
        open_step.excluded |= excluded
        if not excluded:
            self.planning.observe(reduced, bucket.tensors, bucket.number, bucket.ctx, self.memories.target)
        values = self._values(open_step.bad or open_step.excluded, reduced, bucket.tensors, into)
        states = self.memories.states
        kept = {
            name: states[name] if out.state_if_excluded is None else out.state_if_excluded
            for name, out in reduced.items()
        }
        open_step.pending |= kept if excluded else {name: out.state for name, out in reduced.items()}
        return values

    def _values(
        self,
        bad: bool,
        reduced: Mapping[str, Reduced[Any]],
        inputs: Mapping[str, Tensor],
        into: Mapping[str, Tensor] | None,
    ) -> dict[str, Tensor]:
        if into is None:
            if bad:
                return {name: torch.full_like(tensor, float("nan")) for name, tensor in inputs.items()}
            return {name: cast_saturating(out.value, self.memories.layers[name].dtype) for name, out in reduced.items()}
        for name, out in reduced.items():
            if bad:
                into[name].fill_(float("nan"))
            else:
                out.write_value(into[name])
        return dict(into)

    def discard(self, names: Iterable[str]) -> None:
        """Drop the pending states of these layers."""
        for name in names:
            self._open.pending.pop(name, None)

    def settle(self, good: bool) -> bool:
        """Commit or drop the pending states; True if the step was good. A failed step is dropped and not counted."""
        ended = self._open
        if good and not (ended.buckets or ended.failed or self.flatten_buffer.held or self.planning.has_begun):
            return True  # no step is open
        missing = self.flatten_buffer.clear() if self.flatten_buffer.held else []
        if missing:
            log.warning("the step is skipped: layers missing in this step: %s", ", ".join(missing))
        if ended.failed:
            self.abandon()
            return False
        good = good and not ended.bad and not missing
        if good:
            self.memories.commit(ended.pending)
            self.planning.commit()
        good = good and not ended.excluded
        self.skipped += not good
        self.abandon()
        return good

    def abandon(self) -> None:
        """Drop the open step, as if it had not begun."""
        if self.flatten_buffer.held:
            self.flatten_buffer.clear()
        self.planning.roll_back()
        self._open = OpenStep()

    def _check(self, open_step: OpenStep, tensors: Mapping[str, Tensor], step: int) -> None:
        layers = self.memories.layers
        for name, tensor in tensors.items():
            spec = layers.get(name)
            if spec is None:
                raise KeyError(f"Exchanger: unknown layer {name!r}; the layers are {list(layers)}")
            if (tuple(tensor.shape), tensor.dtype) != (spec.shape, spec.dtype):
                got = f"{tuple(tensor.shape)} {tensor.dtype}"
                raise ValueError(f"Exchanger: layer {name} must be {spec.shape} {spec.dtype}, got {got}")
            if name in open_step.pending or name in self.flatten_buffer.held:
                raise ProtocolError(
                    f"step {step}: layer {name} was already exchanged in this step; call begin() or settle() first"
                )
