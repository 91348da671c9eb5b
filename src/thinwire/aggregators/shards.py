"""Layers split into one shard per owner: encoding, decoding and averaging of shards (`two_hop`, `parameter_server`)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..core import (
    Compressor,
    Context,
    Key,
    Label,
    Payload,
    TensorSpec,
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
    mean = torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)
    for rank, payload in enumerate(payloads):
        decoded = decode_shard(compressor, payload, spec, ctx.key(spec.name, rank), owner)
        mean.add_(decoded, alpha=1 / ctx.world.size)
    return saturate(mean)  # n rounded shares of the largest finite number may exceed it


def compressor_for_shard(compressor: Compressor, num_shards: int) -> Compressor:
    """The compressor for one shard: a sparse one keeps its share of what it would keep of the whole tensor."""
    return compressor.for_shard(num_shards) if selects_coordinates(compressor) else compressor


def answer_key(ctx: Context, name: str, owner: int) -> Key:
    """The random key of an owner's answer to all ranks."""
    return derive_key(ctx.key(name, owner), _ANSWER_KEY)


def outgoing_labels(layer: str, payloads: tuple[Payload, ...], rank: int) -> tuple[Label, ...]:
    """Labels of the payloads that leave this rank; its own shard is not sent."""
    return tuple(label for owner, p in enumerate(payloads) if owner != rank for label in payload_labels(layer, p))
