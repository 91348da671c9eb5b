"""Sparsifiers for all layers of a batch: one call of C takes and codes what was selected, one averages all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from torch import Tensor

from ..core import EncodedBatch, Key, LayerBatch, Payload, TensorSpec
from ..kernels import TakenBatch, add_many, sparse_mean_many, take_at_many
from ..wire import INDEX_KINDS, model_index_bits


class SparseLayers(Protocol):
    """A sparsifier that sends values as they are."""

    def select_many(self, flats: Sequence[Tensor], keys: Sequence[Key]) -> tuple[Tensor, Sequence[int]]:
        """`select` of each layer, one after another, and how many there are of each."""
        ...

    def bounds(self, numel: int) -> tuple[int, int]:
        """The smallest and the largest number of coordinates that are sent of `numel`."""
        ...


def encode_selected(compressor: SparseLayers, batch: LayerBatch, keys: Sequence[Key]) -> EncodedBatch:
    """`encode_many` of a sparsifier."""
    targets, first_bad = add_many(batch.tensors, batch.residuals)
    if first_bad >= 0:
        return EncodedBatch(Payload(()), None, first_bad)
    flats = [target.flatten() for target in targets]
    positions, counts = compressor.select_many(flats, keys)
    taken = take_at_many(flats, positions, counts, batch.residuals is not None)
    return EncodedBatch(label_pairs(taken, batch.specs, counts), None if batch.residuals is None else targets, -1)


def decode_mean_selected(
    compressor: SparseLayers, payloads: Sequence[Payload], specs: Sequence[TensorSpec], outs: Sequence[Tensor]
) -> None:
    """`decode_mean_many` of a sparsifier.

    Raises:
        DecodeError: a payload is damaged.
    """
    sparse_mean_many(payloads, [compressor.bounds(spec.numel) for spec in specs], outs)


def label_pairs(taken: TakenBatch, specs: Sequence[TensorSpec], counts: Sequence[int]) -> Payload:
    """The payload of a batch, labeled: positions and float32 values of each layer in turn."""
    numels = tuple([spec.numel for spec in specs])
    kinds = tuple([kind for coding in taken.codings for kind in (INDEX_KINDS[coding], "values")])
    return taken.payload.labeled(kinds, _model_bits(numels, tuple(counts)))


@lru_cache(maxsize=256)  # with a fixed density the same for a bucket at every step
def _model_bits(numels: tuple[int, ...], counts: tuple[int, ...]) -> tuple[float, ...]:
    """Bits of positions and values of each layer, by the formula of papers."""
    pairs = [(model_index_bits(k, n), 32.0 * k) for n, k in zip(numels, counts, strict=True)]
    return tuple([bits for pair in pairs for bits in pair])
