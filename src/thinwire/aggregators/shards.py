"""Layers split into one shard per owner: encoding, decoding and averaging of shards (`two_hop`, `parameter_server`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from ..core import (
    Compressor,
    Context,
    DecodesMean,
    Key,
    Label,
    Payload,
    TensorSpec,
    decodes_mean,
    derive_key,
    payload_labels,
    saturate,
    selects_coordinates,
    shard_sizes,
)

_ANSWER_KEY = "second hop"  # frozen: makes the random bits


class ShardLayout:
    """How a layer is split: one flat shard per owner; the first shards may be one element longer."""

    def __init__(self, spec: TensorSpec, owners: int) -> None:
        self.sizes = shard_sizes(spec.numel, owners)
        self.starts = [sum(self.sizes[:r]) for r in range(owners)]
        self.specs = [TensorSpec(spec.name, (n,), spec.dtype, spec.device) for n in self.sizes]

    def split(self, tensor: Tensor) -> list[Tensor]:
        """The flattened tensor as one view per owner."""
        return list(torch.split(tensor.flatten(), self.sizes))


class BatchLayout(NamedTuple):
    """How the layers of a batch are split; shards of all layers are in the order of their owners."""

    layouts: tuple[ShardLayout, ...]  # by layer
    specs: tuple[TensorSpec, ...]  # of all shards, owner by owner

    def split_all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Views of all shards, owner by owner."""
        split = [layout.split(tensor) for layout, tensor in zip(self.layouts, tensors, strict=True)]
        return [shard for shards in zip(*split, strict=True) for shard in shards]

    def owned(self, owner: int) -> tuple[TensorSpec, ...]:
        """The specs of an owner's shards."""
        count = len(self.layouts)
        return self.specs[owner * count : (owner + 1) * count]


@lru_cache(maxsize=256)  # the same for a bucket at every step
def lay_out_batch(specs: tuple[TensorSpec, ...], owners: int) -> BatchLayout:
    """The shards of the layers of a batch."""
    layouts = tuple([ShardLayout(spec, owners) for spec in specs])
    return BatchLayout(layouts, tuple([layout.specs[owner] for owner in range(owners) for layout in layouts]))


class ShardKeys(Sequence[Key]):
    """The keys of some shards, each given as (layer, rank, owner); one is derived when it is read.

    Args:
        ctx: of the step.
        shards: the layer's name, the rank that encodes, and the owner of the shard, for each.
    """

    def __init__(self, ctx: Context, shards: Sequence[tuple[str, int, int | str]]) -> None:
        self._ctx, self._shards = ctx, shards

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return ShardKeys(self._ctx, self._shards[at])
        name, rank, owner = self._shards[at]
        return derive_key(self._ctx.key(name, rank), owner)


def encode_shards(compressor: Compressor, tensor: Tensor, layout: ShardLayout, key: Key) -> tuple[Payload, ...]:
    """One payload per owner. A sparse compressor selects over the whole tensor before it is split."""
    shards = layout.split(tensor)
    keys = [derive_key(key, owner) for owner in range(len(shards))]
    if not selects_coordinates(compressor):
        return tuple(compressor.encode(shard, k) for shard, k in zip(shards, keys, strict=True))
    positions = compressor.select(tensor.flatten(), key)
    values = compressor.take(tensor.flatten(), positions)
    payloads = []
    for start, shard, k in zip(layout.starts, shards, keys, strict=True):
        inside = (positions >= start) & (positions < start + shard.numel())
        payloads.append(compressor.encode_at(values[inside], positions[inside] - start, shard.numel(), k))
    return tuple(payloads)


def decode_shard(compressor: Compressor, payload: Payload, spec: TensorSpec, key: Key, owner: int) -> Tensor:
    """What the rank with this key sent to `owner`; `spec` is the shard's."""
    decode = compressor.decode_at if selects_coordinates(compressor) else compressor.decode
    return decode(payload.to(spec.device), spec, derive_key(key, owner)).to(spec.work_dtype)


def decode_shards(
    compressor: Compressor, payloads: Iterable[Payload], layout: ShardLayout, ctx: Context, source: int
) -> Tensor:
    """All that rank `source` sent, as one flat tensor."""
    key = ctx.key(layout.specs[0].name, source)
    pairs = enumerate(zip(payloads, layout.specs, strict=True))
    return torch.cat([decode_shard(compressor, payload, spec, key, owner) for owner, (payload, spec) in pairs])


def average_shard(
    compressor: Compressor, payloads: Iterable[Payload], spec: TensorSpec, ctx: Context, owner: int
) -> Tensor:
    """The average of what all ranks, in rank order, sent to `owner`."""
    keys = [ctx.key(spec.name, rank) for rank in range(ctx.world.size)]
    if spec.dtype == torch.float32 and averages_shards(compressor):
        own_keys = [derive_key(key, owner) for key in keys]
        mean = compressor.decode_mean([payload.to(spec.device) for payload in payloads], spec, own_keys)
    else:
        mean = torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)
        for key, payload in zip(keys, payloads, strict=True):
            # not add_(..., alpha=1 / size): some processors round that once and some twice
            mean += decode_shard(compressor, payload, spec, key, owner) * (1 / ctx.world.size)
    return saturate(mean)  # n rounded shares of the largest finite number may exceed it


def averages_shards(compressor: Compressor) -> TypeGuard[DecodesMean]:
    """Whether `decode_mean` averages the shards of all ranks."""
    return decodes_mean(compressor) and not selects_coordinates(compressor)


def compressor_for_shard(compressor: Compressor, num_shards: int) -> Compressor:
    """The compressor for one shard: a sparse one keeps its share of what it would keep of the whole tensor."""
    return compressor.for_shard(num_shards) if selects_coordinates(compressor) else compressor


def answer_key(ctx: Context, name: str, owner: int) -> Key:
    """The random key of an owner's answer to all ranks."""
    return derive_key(ctx.key(name, owner), _ANSWER_KEY)


def answer_keys(ctx: Context, names: Sequence[str], owners: Sequence[int]) -> ShardKeys:
    """`answer_key` of all layers of each owner, owner by owner."""
    return ShardKeys(ctx, [(name, owner, _ANSWER_KEY) for owner in owners for name in names])


def outgoing_labels(layer: str, payloads: tuple[Payload, ...], rank: int) -> tuple[Label, ...]:
    """Labels of the payloads that leave this rank; its own shard is not sent."""
    return tuple(label for owner, p in enumerate(payloads) if owner != rank for label in payload_labels(layer, p))
