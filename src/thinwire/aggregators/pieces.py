"""A layer cut into pieces that have owners: what exchanges by way of owners share."""

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


class Pieces:
    """How a layer is cut: one flat piece an owner, the first ones a little longer."""

    def __init__(self, spec: TensorSpec, owners: int) -> None:
        self.sizes = shard_sizes(spec.numel, owners)
        self.starts = [sum(self.sizes[:r]) for r in range(owners)]
        self.specs = [TensorSpec(spec.name, (n,), spec.dtype, spec.device) for n in self.sizes]

    def of(self, tensor: Tensor) -> list[Tensor]:
        return list(torch.split(tensor.flatten(), self.sizes))


def encode_pieces(compressor: Compressor, tensor: Tensor, cut: Pieces, key: Key) -> tuple[Payload, ...]:
    """One payload an owner. A sparse operator chooses over the whole tensor, before it is cut."""
    pieces = cut.of(tensor)
    keys = [derive_key(key, to) for to in range(len(pieces))]
    if not selects_coordinates(compressor):
        return tuple(compressor.encode(piece, k) for piece, k in zip(pieces, keys, strict=True))
    positions = compressor.select(tensor.flatten(), key)
    kept = compressor.take(tensor.flatten(), positions)
    payloads = []
    for start, piece, k in zip(cut.starts, pieces, keys, strict=True):
        inside = (positions >= start) & (positions < start + piece.numel())
        payloads.append(compressor.encode_at(kept[inside], positions[inside] - start, piece.numel(), k))
    return tuple(payloads)


def decode_piece(compressor: Compressor, payload: Payload, spec: TensorSpec, key: Key, to: int) -> Tensor:
    """What the rank with this key sent to owner `to`; `spec` is the piece's."""
    decode = compressor.decode_at if selects_coordinates(compressor) else compressor.decode
    return decode(payload.to(spec.device), spec, derive_key(key, to)).to(spec.work_dtype)


def mean_of_pieces(
    compressor: Compressor, payloads: Iterable[Payload], spec: TensorSpec, ctx: Context, to: int
) -> Tensor:
    """The average of what all ranks, in their order, sent to owner `to`."""
    mean = torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)
    for rank, payload in enumerate(payloads):
        decoded = decode_piece(compressor, payload, spec, ctx.key(spec.name, rank), to)
        mean.add_(decoded, alpha=1 / ctx.world.size)
    return saturate(mean)  # n rounded shares of the largest number may exceed it


def decoded_pieces(
    compressor: Compressor, payloads: Iterable[Payload], cut: Pieces, ctx: Context, source: int
) -> Tensor:
    """What rank `source` sent, whole and flat."""
    key = ctx.key(cut.specs[0].name, source)
    pairs = enumerate(zip(payloads, cut.specs, strict=True))
    return torch.cat([decode_piece(compressor, payload, spec, key, to) for to, (payload, spec) in pairs])


def share_of(compressor: Compressor, pieces: int) -> Compressor:
    """The operator for one piece: one that chooses keeps its share of what it would keep of the whole."""
    return compressor.for_shard(pieces) if selects_coordinates(compressor) else compressor


def second_key(ctx: Context, name: str, owner: int) -> Key:
    """Of what an owner tells all."""
    return derive_key(ctx.key(name, owner), "second hop")


def leaving_labels(layer: str, payloads: tuple[Payload, ...], rank: int) -> tuple[Label, ...]:
    """Of the pieces that leave; what a rank owns itself stays."""
    return tuple(label for to, p in enumerate(payloads) if to != rank for label in payload_labels(layer, p))
