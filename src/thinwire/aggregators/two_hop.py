"""Compressed two-hop all-reduce (1-bit Adam, Tang et al., 2021): shards to owners, encoded averages to all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..core import (
    AllGather,
    AllToAll,
    BatchCompressor,
    Capabilities,
    Capability,
    Compressor,
    Context,
    EncodedBatch,
    GatheredPayloads,
    IncompatibleParts,
    Key,
    Label,
    LayerBatch,
    Payload,
    Program,
    Reduced,
    ReducedBatch,
    TensorSpec,
    all_finite,
    batch_labels,
    cast_saturating,
    copy_all,
    cut_all,
    encodes_many,
    has,
    is_additive,
    payload_labels,
    repeat_names,
    saturate,
)
from ..core.payloads import join
from ..kernels.memory import empty
from .shards import (
    BatchLayout,
    ShardKeys,
    ShardLayout,
    answer_key,
    answer_keys,
    average_shard,
    averages_shards,
    compressor_for_shard,
    decode_shards,
    encode_shards,
    lay_out_batch,
    outgoing_labels,
)

_ALWAYS = frozenset({Capability.LOSSLESS, Capability.WRAPS_COMPRESSOR})


@dataclass(frozen=True)
class TwoHop:
    """Each rank averages one shard, encodes the average again and sends it to all: about 2 payloads per rank for any n.

    A sparse compressor selects over the whole tensor; an owner then keeps its share of what the compressor would keep.
    The error of the second encoding is subtracted from the owner's `sent`, so error feedback loses nothing.

    Args:
        compressor: encodes shards in both hops.
    """

    compressor: Compressor

    def __post_init__(self) -> None:
        if is_additive(self.compressor):
            name = type(self.compressor).__name__
            raise IncompatibleParts(
                f"TwoHop encodes twice; {name}'s payloads can be added by one all-reduce. Use SumMean({name}(...))"
            )

    @cached_property
    def capabilities(self) -> Capabilities:
        batches = encodes_many(self.compressor) and averages_shards(self.compressor)
        return _ALWAYS | ({Capability.BATCHES_LAYERS} if batches else frozenset())

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        rank, size = ctx.world
        layout = ShardLayout(spec, size)
        payloads = encode_shards(self.compressor, tensor, layout, ctx.key(spec.name, rank))
        received: GatheredPayloads = yield AllToAll(
            payloads, outgoing_labels(spec.name, payloads, rank), expected_bytes=spec.num_bytes
        )
        mean = average_shard(self.compressor, received, layout.specs[rank], ctx, rank)
        second = compressor_for_shard(self.compressor, size)
        answer = second.encode(cast_saturating(mean, spec.dtype), answer_key(ctx, spec.name, rank))
        answers: GatheredPayloads = yield AllGather(
            answer, payload_labels(spec.name, answer), expected_bytes=spec.num_bytes
        )
        return self._make_result(payloads, mean, answers, spec, ctx)

    def _make_result(
        self, payloads: Sequence[Payload], mean: Tensor, answers: GatheredPayloads, spec: TensorSpec, ctx: Context
    ) -> Reduced[tuple[()]]:
        """The result of one layer, decoded when it is asked for.

        Args:
            payloads: what this rank has sent to each owner.
            mean: of the shard that this rank owns.
            answers: of all owners.
            spec: the layer's.
            ctx: of the step.
        """
        rank, size = ctx.world
        layout, second = ShardLayout(spec, size), compressor_for_shard(self.compressor, size)

        def decode_answer(owner: int) -> Tensor:
            payload, key, owned = answers[owner].to(spec.device), answer_key(ctx, spec.name, owner), layout.specs[owner]
            if spec.dtype == torch.float32 and averages_shards(second):
                return second.decode_mean([payload], owned, [key])  # writes 0 for -0, as in a batch
            return second.decode(payload, owned, key).to(spec.work_dtype)

        def decode_answers(out: Tensor | None) -> Tensor:
            flat = None
            if out is not None and out.is_contiguous() and out.dtype == spec.work_dtype:
                flat = out.view(-1)
            return torch.cat([decode_answer(r) for r in range(size)], out=flat)

        def compute_sent() -> Tensor:
            sent = decode_shards(self.compressor, payloads, layout, ctx, rank)
            shard = sent[layout.starts[rank] :][: mean.numel()]
            shard -= size * (mean - decode_answer(rank))  # times n, because the mean over ranks divides by n
            return saturate(sent).view(spec.shape)

        def write_value(out: Tensor | None) -> Tensor:
            return answers.cached_copy("value", decode_answers, out).view(spec.shape)

        return Reduced(write_value, compute_sent, ())

    # All layers of a batch: the shards of all layers are encoded, averaged and decoded by one call each

    def reduce_many(self, batch: LayerBatch, ctx: Context) -> Program[ReducedBatch]:
        """The same two messages, for all layers at once."""
        compressor = self._get_batch_compressor()
        (rank, size), names = ctx.world, batch.names
        layout, expected = lay_out_batch(batch.specs, size), sum([spec.num_bytes for spec in batch.specs])
        targets = batch.tensors if batch.residuals is None else _add_residuals(batch, ctx)
        encoded = self._encode_shards(targets, batch, layout, ctx)
        parts = encoded.num_parts // len(layout.specs)
        to_owners = tuple(encoded.cut([parts * len(names)] * size))
        labels = _label_shards(encoded, names, parts, rank, size)
        received: GatheredPayloads = yield AllToAll(to_owners, labels, expected_bytes=expected)

        means = _empty_like(layout.owned(rank))
        sources = [ShardKeys(ctx, [(name, source, rank) for name in names]) for source in range(size)]
        compressor.decode_mean_many(received, layout.owned(rank), sources, means)
        answer, means = _encode_means(compressor, means, layout.owned(rank), answer_keys(ctx, names, [rank]))
        labels = batch_labels(repeat_names(names, parts), answer)
        answers: GatheredPayloads = yield AllGather(answer, labels, expected_bytes=expected)

        def decode_into(outs: Sequence[Tensor]) -> None:
            keys = answer_keys(ctx, names, range(size))
            compressor.decode_mean_many([join(answers)], layout.specs, [keys], layout.split_all(outs))

        def write_values(outs: Sequence[Tensor]) -> None:
            if not answers.shared and all(out.is_contiguous() for out in outs):
                decode_into(outs)
            else:
                copy_all(answers.cached("values", lambda: _decode_new(batch.specs, decode_into)), outs)

        counts, own = [parts] * len(names), list[list[Payload]]()  # own: by owner and layer, cut at the first use

        def layer(i: int) -> Reduced[Any]:
            own.extend(payload.cut(counts) for payload in (() if own else to_owners))
            of_layer = answers.cached(("cut", *counts), lambda: cut_all(answers, counts))[i]
            return self._make_result([of_owner[i] for of_owner in own], means[i], of_layer, batch.specs[i], ctx)

        residuals = None
        if batch.residuals is not None:
            residuals = [saturate(target - layer(i).sent) for i, target in enumerate(targets)]
        return ReducedBatch(list(batch.states), residuals, write_values, layer)

    def _get_batch_compressor(self) -> BatchCompressor:
        if not has(self, Capability.BATCHES_LAYERS):  # a sparse one selects over whole layers
            raise TypeError(f"TwoHop: {type(self.compressor).__name__} cannot encode the shards of a batch")
        return self.compressor  # type: ignore[return-value]

    def _encode_shards(
        self, targets: Sequence[Tensor], batch: LayerBatch, layout: BatchLayout, ctx: Context
    ) -> Payload:
        """The payload of all shards, owner by owner; of zeros if a tensor is not finite."""
        compressor = self._get_batch_compressor()
        rank, size = ctx.world
        keys = ShardKeys(ctx, [(name, rank, owner) for owner in range(size) for name in batch.names])
        shards = LayerBatch(layout.split_all(targets), layout.specs, [()] * len(layout.specs))
        encoded: EncodedBatch = compressor.encode_many(shards, keys)
        if encoded.first_bad >= 0:
            ctx.nonfinite.append(batch.names[encoded.first_bad % len(batch.specs)])
            encoded = compressor.encode_many(shards.zeros(), keys)
        return encoded.payload


def _add_residuals(batch: LayerBatch, ctx: Context) -> list[Tensor]:
    """The saturated sums with the residuals; if a tensor is not finite, the residuals alone."""
    assert batch.residuals is not None
    bad = [name for name, tensor in zip(batch.names, batch.tensors, strict=True) if not all_finite(tensor)]
    ctx.nonfinite.extend(bad)
    tensors = batch.zeros().tensors if bad else batch.tensors
    return [saturate(tensor + residual) for tensor, residual in zip(tensors, batch.residuals, strict=True)]


def _label_shards(payload: Payload, names: Sequence[str], parts: int, rank: int, size: int) -> tuple[Label, ...]:
    """The labels of all shards that leave this rank, layer by layer as in the plain form."""
    labels = batch_labels(repeat_names(tuple(names) * size, parts), payload)
    others, count = [owner for owner in range(size) if owner != rank], len(names)
    starts = [(owner * count + layer) * parts for layer in range(count) for owner in others]
    return tuple([label for start in starts for label in labels[start : start + parts]])


def _encode_means(
    compressor: BatchCompressor, means: list[Tensor], specs: tuple[TensorSpec, ...], keys: Sequence[Key]
) -> tuple[Payload, list[Tensor]]:
    """The payload of the averages, and these saturated: n rounded shares of the largest number may exceed it."""
    encoded = compressor.encode_many(LayerBatch(means, specs, [()] * len(specs)), keys)
    if encoded.first_bad >= 0:
        means = [saturate(mean) for mean in means]
        encoded = compressor.encode_many(LayerBatch(means, specs, [()] * len(specs)), keys)
    return encoded.payload, means


def _empty_like(specs: Sequence[TensorSpec]) -> list[Tensor]:
    """One vector for each spec, in one piece of memory."""
    sizes = [spec.numel for spec in specs]
    return list(torch.split(empty(sum(sizes)), sizes))


def _decode_new(specs: Sequence[TensorSpec], decode_into: Any) -> list[Tensor]:
    """Contiguous tensors of these specs, written by `decode_into`."""
    values = [torch.empty(spec.shape) for spec in specs]
    decode_into(values)
    return values
