"""Batches: layers of one exchange with equal parts, handled by one call instead of one call per layer.

The plain form, one program per layer joined by `fuse`, is the definition: a batch sends the same bytes and gives the
same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeGuard

import torch
from torch import Tensor

from .capabilities import Capability, has
from .context import Context, Key
from .parts import Aggregator, Compressor, Reduced, reduce_with_residual
from .payloads import Payload
from .programs import fuse
from .requests import Program
from .tensors import TensorSpec, all_finite, saturate


class LayerBatch(NamedTuple):
    """The layers of a batch, in order.

    residuals: added to the tensors before they are sent, with error feedback. estimates: subtracted from the tensors
    before they are sent, with EF21; only for parts that declare FUSES_ESTIMATE, and never with residuals. outs: where
    the averages will be written; an aggregator may write to them as soon as it has read the tensors, which may be the
    same. `sent` of its results is undefined then.
    """

    tensors: Sequence[Tensor]
    specs: tuple[TensorSpec, ...]
    states: Sequence[Any]
    residuals: Sequence[Tensor] | None = None
    estimates: Sequence[Tensor] | None = None
    outs: Sequence[Tensor] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The layers' names."""
        return tuple([spec.name for spec in self.specs])

    def select(self, indices: Sequence[int]) -> LayerBatch:
        """Some of the layers, without their outs."""
        return LayerBatch(
            [self.tensors[i] for i in indices],
            tuple([self.specs[i] for i in indices]),
            [self.states[i] for i in indices],
            None if self.residuals is None else [self.residuals[i] for i in indices],
            None if self.estimates is None else [self.estimates[i] for i in indices],
        )

    def zeros(self) -> LayerBatch:
        """The same batch with tensors of zeros."""
        return self._replace(tensors=[torch.zeros_like(tensor) for tensor in self.tensors])


class ReducedBatch(NamedTuple):
    """The results for the layers of a batch.

    states: new states, pending until all ranks agree that the step was good. Read them after `write_values` if that is
    called at all: what both need may then be computed in one pass. residuals: what was not sent, if the batch had
    residuals. write_values: writes the averages to the given tensors. layer: the result of one layer, without its
    residual. estimates: the next ones, saturated, if the batch had estimates. add_values: a faster form of
    `plus_values`.
    """

    states: Sequence[Any]
    residuals: list[Tensor] | None
    write_values: Callable[[Sequence[Tensor]], None]
    layer: Callable[[int], Reduced[Any]]
    estimates: list[Tensor] | None = None
    add_values: Callable[[Sequence[Tensor], Sequence[Tensor] | None], list[Tensor]] | None = None

    def plus_sent(self, bases: Sequence[Tensor]) -> list[Tensor]:
        """New tensors: each base plus what this rank sent of that layer, saturated."""
        return [saturate(base + self.layer(i).sent) for i, base in enumerate(bases)]

    def plus_values(self, bases: Sequence[Tensor], outs: Sequence[Tensor] | None = None) -> list[Tensor]:
        """New tensors: each base plus the average of that layer, saturated. The same is written to `outs`, if given."""
        if self.add_values is not None:
            return self.add_values(bases, outs)
        sums = [saturate(base + self.layer(i).value) for i, base in enumerate(bases)]
        if outs is not None:
            copy_all(sums, outs)
        return sums

    def with_states(self, states: list[Any]) -> ReducedBatch:
        """The same results with the states of a wrapper."""
        return ReducedBatch(states, None, self.write_values, lambda i: self.layer(i).with_state(states[i]))


class EncodedBatch(NamedTuple):
    """What a compressor makes of a batch.

    payload: as many parts for each layer, labeled. residuals: what it leaves, if the batch had residuals. first_bad:
    the first layer with a tensor that is not finite, or -1. estimates: each estimate plus what is sent, saturated, if
    the batch had estimates.
    """

    payload: Payload
    residuals: list[Tensor] | None
    first_bad: int
    estimates: list[Tensor] | None = None


class BatchCompressor(Compressor, Protocol):
    """A compressor that encodes and averages all layers of a batch in one call each: float32 on the CPU."""

    def encode_many(self, batch: LayerBatch, keys: Sequence[Key]) -> EncodedBatch:
        """`encode`, or `encode_with_residual`, of each layer; `keys` has the key of each."""
        ...

    def decode_mean_many(
        self,
        payloads: Sequence[Payload],
        specs: Sequence[TensorSpec],
        keys: Sequence[Sequence[Key]],
        outs: Sequence[Tensor],
    ) -> None:
        """`decode_mean` of each layer, written to `outs`; `keys` has the keys of each rank."""
        ...


class BatchAggregator(Protocol):
    """An aggregator that reduces all layers of a batch in one program: float32 on the CPU."""

    def reduce_many(self, batch: LayerBatch, ctx: Context) -> Program[ReducedBatch]:
        """`reduce`, or `reduce_with_residual`, of each layer. Tensors that are not finite are passed to `ctx`."""
        ...


def encodes_many(part: Any) -> TypeGuard[BatchCompressor]:
    """Whether a compressor has `encode_many`."""
    return has(part, Capability.BATCHES_LAYERS)


def fuses_estimate(part: Any) -> bool:
    """Whether `encode_many` of a compressor, or `reduce_many` of an aggregator, takes a batch with estimates."""
    return has(part, Capability.FUSES_ESTIMATE)


def reduces_many(part: Any) -> TypeGuard[BatchAggregator]:
    """Whether an aggregator has `reduce_many`."""
    return has(part, Capability.BATCHES_LAYERS)


def can_batch(part: Any, spec: TensorSpec) -> bool:
    """Whether `reduce_many` of this aggregator takes this layer."""
    return spec.dtype == torch.float32 and spec.device.type == "cpu" and spec.numel > 0 and reduces_many(part)


def reduce_one(part: Aggregator[Any], batch: LayerBatch, ctx: Context) -> Program[ReducedBatch]:
    """A batch of one layer by the plain form."""
    (tensor,), (spec,), (state,) = batch.tensors, batch.specs, batch.states
    if batch.residuals is None:
        out, residuals = (yield from part.reduce(tensor, spec, state, ctx)), None
    else:
        out, rest = yield from reduce_with_residual(part, tensor, batch.residuals[0], spec, state, ctx)
        residuals = [rest]
    return ReducedBatch([out.state], residuals, lambda outs: out.write_value(outs[0]), lambda _: out)


def reduce_tested(part: Aggregator[Any], batch: LayerBatch, ctx: Context) -> Program[ReducedBatch]:
    """`reduce_one` of a layer of a batch, of which nothing has tested yet whether it is finite."""
    if not all_finite(batch.tensors[0]):
        ctx.nonfinite.append(batch.names[0])
        batch = batch.zeros()
    return (yield from reduce_one(part, batch, ctx))


def reduce_singly(part: Aggregator[Any], batch: LayerBatch, ctx: Context) -> Program[ReducedBatch]:
    """A batch by the plain form, one program per layer."""
    singles = [[i] for i in range(len(batch.specs))]
    outs = yield from fuse([reduce_tested(part, batch.select(single), ctx) for single in singles])
    return join_reduced(list(zip(singles, outs, strict=True)))


def join_reduced(parts: Sequence[tuple[Sequence[int], ReducedBatch]]) -> ReducedBatch:
    """The results of several programs as those of one batch; each comes with the indices of its layers."""
    places = {i: (out, at) for indices, out in parts for at, i in enumerate(indices)}
    order = range(len(places))
    has_residuals = any(out.residuals is not None for _, out in parts)

    def write_values(outs: Sequence[Tensor]) -> None:
        for indices, out in parts:
            out.write_values([outs[i] for i in indices])

    return ReducedBatch(
        [places[i][0].states[places[i][1]] for i in order],
        [places[i][0].residuals[places[i][1]] for i in order] if has_residuals else None,  # type: ignore[index]
        write_values,
        lambda i: places[i][0].layer(places[i][1]),
    )


def copy_all(tensors: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
    """Copy each tensor to the one at its place in `outs`."""
    for tensor, out in zip(tensors, outs, strict=True):
        out.copy_(tensor)


@lru_cache(maxsize=256)  # the same for a bucket at every step
def repeat_names(names: tuple[str, ...], times: int) -> tuple[str, ...]:
    """Each name so many times, one after another: the layer of each part of a batch's payload."""
    return tuple([name for name in names for _ in range(times)])
