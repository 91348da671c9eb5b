"""StepExchange: the exchanges of one step; states are pending until all ranks know whether it was good."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import (
    Aggregator,
    Context,
    FlattenBuffer,
    LayerBatch,
    Program,
    ProtocolError,
    ReducedBatch,
    World,
    all_finite,
    cast_saturating,
    fuse,
    fuse_flagged,
)
from ..core.logs import get_logger
from .grouping import LayerGroup, group_layers, reduce_group
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
    """One exchange of a step: its layers and the programs of their batches."""

    number: int  # among the exchanges of the step, from 0
    ctx: Context
    tensors: dict[str, Tensor]
    bad: list[str]  # layers with tensors of this rank that are not finite, as far as known; a batch finds its own
    batches: list[tuple[tuple[str, ...], Program[ReducedBatch]]]  # names of layers, and their program

    def is_bad(self) -> bool:
        """Whether a tensor of this rank is not finite; known when all programs have made their first request."""
        return bool(self.bad or self.ctx.nonfinite)


class StepExchange:
    """Runs the exchanges of one step after another. A step with a failed exchange commits nothing."""

    def __init__(self, memories: LayerMemories, planning: Planning, wait_for_flattened: bool) -> None:
        self.memories, self.planning = memories, planning
        self.flatten_buffer = FlattenBuffer(memories.aggregators, list(memories.layers.values()))
        if not wait_for_flattened:
            self.flatten_buffer.disable()
        self.skipped = 0
        self._open = OpenStep()
        self._lock = threading.Lock()  # exchanges of one step may end in several threads
        self._groups: dict[
            tuple[tuple[str, ...], bool], tuple[list[Aggregator[Any]], list[LayerGroup]]
        ] = {}  # by an exchange's layers, and whether there is an importance

    @property
    def is_order_free(self) -> bool:
        """Whether the exchanges of a step may end in any order: nothing observes them, no layer waits for another."""
        return not (self.planning.is_observed or self.flatten_buffer.names)

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
            bucket = self._encode(open_step, tensors, step, world, into)
            programs = [program for _, program in bucket.batches]
            outs, anywhere_bad = yield from fuse_flagged(programs, bucket.is_bad, step)
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
            outs = yield from fuse([program for _, program in bucket.batches], step)
            states = [list(out.states) for out in outs]  # may be computed only now
        except BaseException:
            open_step.failed = True
            raise
        self._warn(bucket)
        open_step.bad |= bucket.is_bad()
        for (names, _), new in zip(bucket.batches, states, strict=True):
            open_step.pending |= zip(names, new, strict=True)
        return not bucket.is_bad()

    def _encode(
        self,
        open_step: OpenStep,
        tensors: Mapping[str, Tensor],
        step: int,
        world: World,
        into: Mapping[str, Tensor] | None = None,
    ) -> Bucket:
        """Start the programs of the layers, with zeros for all layers if one is not finite."""
        memories, ctx = self.memories, self.planning.context(step, world)
        if not open_step.buckets:
            self.planning.start_clock()
        number, open_step.buckets = open_step.buckets, open_step.buckets + 1
        groups = self._group(tuple(tensors))
        tested = {name for group in groups if not group.is_batched for name in group.names}  # a batch tests its own
        bad = [name for name, tensor in tensors.items() if name in tested and not all_finite(tensor)]
        inputs = {name: torch.zeros_like(t) if bad else t.detach() for name, t in tensors.items()}
        bucket = Bucket(number, ctx, inputs, bad, [])
        outs = None if self.planning.is_observed else into  # an observer reads the tensors after the exchange
        for group in groups:
            layers = LayerBatch(
                [inputs[name] for name in group.names],
                group.specs,
                [memories.states[name] for name in group.names],
                outs=None if outs is None else [outs[name] for name in group.names],
            )
            part = group.part if group.is_batched else memories.aggregator(group.names[0])
            bucket.batches.append((group.names, reduce_group(part, layers, group.is_batched, ctx)))
        return bucket

    def _group(self, names: tuple[str, ...]) -> list[LayerGroup]:
        """The batches of these layers: DDP gives the same layers at every step."""
        parts, key = [self.memories.aggregators[name] for name in names], (names, self.memories.has_importance)
        known = self._groups.get(key)
        if known is None or known[0] != parts:
            known = self._groups[key] = parts, group_layers(names, self.memories)
        return known[1]

    def _warn(self, bucket: Bucket) -> None:
        if bucket.is_bad():
            text = "step %d: rank %d has NaN or Inf in %s; the step is skipped"
            log.warning(text, bucket.ctx.step, bucket.ctx.world.rank, ", ".join(bucket.bad or bucket.ctx.nonfinite))

    def _decode(
        self,
        open_step: OpenStep,
        bucket: Bucket,
        outs: Sequence[ReducedBatch],
        anywhere_bad: bool,
        into: Mapping[str, Tensor] | None,
    ) -> dict[str, Tensor]:
        """The averages. States become pending last, when nothing can fail any more."""
        self._warn(bucket)
        batches = [(names, out) for (names, _), out in zip(bucket.batches, outs, strict=True)]
        excluded = bucket.is_bad() and not anywhere_bad
        with self._lock:
            open_step.bad |= anywhere_bad
            open_step.excluded |= excluded
        if self.planning.is_observed and not (open_step.bad or open_step.excluded):  # else it would be rolled back
            reduced = {name: out.layer(i) for names, out in batches for i, name in enumerate(names)}
            self.planning.observe(reduced, bucket.tensors, bucket.number, bucket.ctx, self.memories.target)
        values = self._values(open_step.bad or open_step.excluded, batches, bucket.tensors, into)
        with self._lock:
            for names, out in batches:
                open_step.pending |= zip(names, self._kept(names, out) if excluded else out.states, strict=True)
        return values

    def _kept(self, names: Sequence[str], out: ReducedBatch) -> list[Any]:
        """The states of a rank that was excluded from the round."""
        kept = [out.layer(i).state_if_excluded for i in range(len(names))]
        return [self.memories.states[name] if state is None else state for name, state in zip(names, kept, strict=True)]

    def _values(
        self,
        bad: bool,
        batches: Sequence[tuple[tuple[str, ...], ReducedBatch]],
        inputs: Mapping[str, Tensor],
        into: Mapping[str, Tensor] | None,
    ) -> dict[str, Tensor]:
        if bad:
            values = {name: torch.empty_like(tensor) for name, tensor in inputs.items()} if into is None else dict(into)
            for name in inputs:
                values[name].fill_(float("nan"))
            return values
        if into is None:
            values = {name: value for names, out in batches for name, value in self._new_values(names, out, inputs)}
            return {name: cast_saturating(values[name], self.memories.layers[name].dtype) for name in inputs}
        for names, out in batches:
            out.write_values([into[name] for name in names])
        return dict(into)

    @staticmethod
    def _new_values(
        names: Sequence[str], out: ReducedBatch, inputs: Mapping[str, Tensor]
    ) -> Iterable[tuple[str, Tensor]]:
        if len(names) == 1:
            return [(names[0], out.layer(0).value)]  # may be there already
        values = [torch.empty_like(inputs[name], memory_format=torch.contiguous_format) for name in names]
        out.write_values(values)
        return zip(names, values, strict=True)

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
