"""The C kernels of kernels/batches.py; see `calls`. What does not suit C is done by the loops over single layers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core import PackedPayload, Payload
from ...core.payloads import Integers
from .. import batches as plain
from ..batches import TakenBatch
from ..memory import empty
from ..positions import width_of
from .calls_positions import _form

_LARGEST, _LARGEST_OF_SUM, _CHANGES = range(3)  # kinds of searches, which find different levels
_LINE = 16  # floats of a cache line: the rests of all layers begin at such multiples


class _LayerLayout(NamedTuple):
    """Arguments of C for layers of these sizes, and where sums lie."""

    numels: Integers
    widths: Integers  # bits of an explicit position
    starts: Integers  # of sums, in elements
    sizes: list[int]  # with the gaps that alignment leaves
    total: int
    dtypes: tuple[torch.dtype, ...]


@lru_cache(maxsize=256)  # the same for a bucket at every step
def _layer_layout(numels: tuple[int, ...]) -> _LayerLayout:
    sizes = [_align(numel, _LINE) for numel in numels]
    starts = np.cumsum([0, *sizes[:-1]]).astype(np.int64)
    widths = _integers([width_of(numel) for numel in numels])
    return _LayerLayout(
        _integers(numels), widths, starts, sizes, sum(sizes), (torch.uint8, torch.float32) * len(numels)
    )


class _SparseLayout(NamedTuple):
    """Arguments of C for so many positions of layers, and where the results lie in one buffer."""

    counts: Integers
    parameters: Integers  # where the search for the Rice parameter starts
    starts: Integers  # bytes; (layers, 2): coded positions, values
    num_bytes: int
    guesses: NDArray[np.float32]  # (kind, layer, 2): where C begins its next search; the result does not depend on it


@lru_cache(maxsize=256)  # with a fixed density the same for a bucket at every step
def _sparse_layout(numels: tuple[int, ...], counts: tuple[int, ...]) -> _SparseLayout:
    forms = [_form(count, numel) for count, numel in zip(counts, numels, strict=True)]
    coded = np.cumsum([0, *[form.num_bytes for form in forms]])
    first_kept = _align(int(coded[-1]), 8)
    kept = first_kept + 4 * np.cumsum([0, *counts])
    starts = np.stack((coded[:-1], kept[:-1]), 1).astype(np.int64)
    guesses = np.zeros((3, len(numels), 2), dtype=np.float32)
    return _SparseLayout(_integers(counts), _integers([form.start for form in forms]), starts, int(kept[-1]), guesses)


class _Taken(NamedTuple):
    """Where C writes the values of a batch and their coded positions."""

    numels: tuple[int, ...]
    layout: _SparseLayout
    buffer: Tensor
    kept: Integers  # addresses
    coded: Integers
    written: Integers

    @classmethod
    def allocate(cls, numels: tuple[int, ...], counts: Sequence[int]) -> _Taken:
        layout = _sparse_layout(numels, tuple(counts))
        buffer, written = empty(layout.num_bytes, torch.uint8, varies=True), np.zeros(len(numels), dtype=np.int64)
        coded, kept = np.ascontiguousarray(layout.starts.T) + buffer.data_ptr()
        return cls(numels, layout, buffer, kept, coded, written)

    def batch(self, rests: list[Tensor] | None, first_bad: int) -> TakenBatch:
        """The results, once C has written them."""
        lengths = np.stack((self.written >> 2, 4 * self.layout.counts), 1).ravel()
        payload = PackedPayload(self.buffer, self.layout.starts.ravel(), lengths, _layer_layout(self.numels).dtypes)
        return TakenBatch(payload, (self.written & 3).tolist(), rests, first_bad)


def take_largest_many(
    library: ctypes.CDLL, tensors: Sequence[Tensor], residuals: Sequence[Tensor] | None, counts: Sequence[int]
) -> TakenBatch:
    kind = _LARGEST if residuals is None else _LARGEST_OF_SUM
    taken = _take_many(library.tw_take_largest_many, kind, tensors, residuals, counts)
    return plain.take_largest_many(tensors, residuals, counts) if taken is None else taken


def take_changes_many(
    library: ctypes.CDLL, tensors: Sequence[Tensor], estimates: Sequence[Tensor], counts: Sequence[int]
) -> TakenBatch:
    taken = _take_many(library.tw_take_changes_many, _CHANGES, tensors, estimates, counts)
    return plain.take_changes_many(tensors, estimates, counts) if taken is None else taken


def _take_many(
    take: Callable[..., int],
    kind: int,
    tensors: Sequence[Tensor],
    others: Sequence[Tensor] | None,
    counts: Sequence[int],
) -> TakenBatch | None:
    """What this function of C takes; None if it cannot. others: residuals or estimates."""
    numels = _numels(tensors)
    if not (all(numels) and _all_suit(tensors) and (others is None or _all_suit(others))):
        return None
    layers, taken = _layer_layout(numels), _Taken.allocate(numels, counts)
    rest = None if others is None else empty(layers.total)
    rest_at = None if rest is None else 4 * layers.starts + rest.data_ptr()
    arrays = (
        _addresses(tensors), None if others is None else _addresses(others), layers.numels, taken.layout.counts,
        taken.layout.parameters, layers.widths, rest_at, taken.kept, taken.coded, taken.written,
        taken.layout.guesses[kind],
    )  # fmt: skip
    first_bad = take(len(numels), *map(_pointer, arrays))
    if first_bad < -1:
        return None
    return taken.batch(None if rest is None else _cut_like(rest, layers.sizes, tensors), first_bad)


def add_many(
    library: ctypes.CDLL, tensors: Sequence[Tensor], others: Sequence[Tensor] | None
) -> tuple[list[Tensor], int]:
    numels = _numels(tensors)
    if not (all(numels) and _all_suit(tensors) and (others is None or _all_suit(others))):
        return plain.add_many(tensors, others)
    layers, given = _layer_layout(numels), _addresses(tensors)
    if others is None:
        return list(tensors), library.tw_add_many(len(numels), _pointer(given), None, _pointer(layers.numels), None)
    buffer = empty(layers.total)
    arrays = given, _addresses(others), layers.numels, 4 * layers.starts + buffer.data_ptr()
    first_bad = library.tw_add_many(len(numels), *map(_pointer, arrays))
    return _cut_like(buffer, layers.sizes, tensors), first_bad


def take_at_many(
    library: ctypes.CDLL, flats: Sequence[Tensor], positions: Tensor, counts: Sequence[int], remove: bool
) -> TakenBatch:
    numels = _numels(flats)
    if not (all(numels) and _all_suit(flats) and _suits(positions, torch.int64, sum(counts))):
        return plain.take_at_many(flats, positions, counts, remove)
    layers, taken, given = _layer_layout(numels), _Taken.allocate(numels, counts), _addresses(flats)
    wrong = library.tw_take_at_many(
        len(numels), _pointer(given), _pointer(layers.numels), positions.data_ptr(), _pointer(taken.layout.counts),
        _pointer(taken.layout.parameters), _pointer(layers.widths), remove,
        *map(_pointer, (taken.kept, taken.coded, taken.written)),
    )  # fmt: skip
    if wrong:
        raise IndexError("positions of a batch must ascend and be inside their layers")
    return taken.batch(None, -1)


def positions_reaching_many(
    library: ctypes.CDLL, flats: Sequence[Tensor], levels: Sequence[float]
) -> tuple[Tensor, list[int]]:
    if not _all_suit(flats):
        return plain.positions_reaching_many(flats, levels)
    given, numels, limits = _addresses(flats), _integers(_numels(flats)), np.array(levels, dtype=np.float32)
    bits, found = empty(4 * int((-(-numels // 32)).sum()), torch.uint8), np.zeros(len(flats), dtype=np.int64)
    arrays = given, numels, limits
    library.tw_reaching_many(len(flats), *map(_pointer, arrays), bits.data_ptr(), _pointer(found))
    positions = empty(int(found.sum()), torch.int64, varies=True)
    library.tw_ones_many(len(flats), bits.data_ptr(), _pointer(numels), _pointer(found), positions.data_ptr())
    return positions, found.tolist()


def kth_magnitudes(library: ctypes.CDLL, flats: Sequence[Tensor], counts: Sequence[int]) -> list[float]:
    numels = _numels(flats)
    if not (_all_suit(flats) and all(1 <= count <= numel for count, numel in zip(counts, numels, strict=True))):
        return plain.kth_magnitudes(flats, counts)
    levels = np.zeros(len(flats), dtype=np.float32)
    arrays = _addresses(flats), _integers(numels), _integers(counts), levels
    missing = library.tw_kth_magnitudes(len(flats), *map(_pointer, arrays))
    return plain.kth_magnitudes(flats, counts) if missing else levels.tolist()


def sparse_mean_many(
    library: ctypes.CDLL, payloads: Sequence[Payload], bounds: Sequence[tuple[int, int]], outs: Sequence[Tensor]
) -> None:
    layers, table = _read_sparse(payloads, bounds, outs)
    wrong = 0
    if table is not None:
        targets = _addresses(outs)  # arrays must outlive the call
        wrong = library.tw_sparse_mean_many(
            len(outs), len(payloads), *map(_pointer, (*table, layers.numels, layers.widths)), 1 / len(payloads),
            _pointer(targets),
        )  # fmt: skip
    if wrong != -1:
        plain.sparse_mean_many(payloads, bounds, outs)  # raises the error


def add_sparse_many(
    library: ctypes.CDLL,
    bases: Sequence[Tensor],
    payloads: Sequence[Payload],
    bounds: Sequence[tuple[int, int]],
    outs: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    layers, table = _read_sparse(payloads, bounds, bases)
    if table is None or not (outs is None or _all_suit(outs)):
        return plain.add_sparse_many(bases, payloads, bounds, outs)
    buffer = empty(layers.total)
    given, targets = _addresses(bases), 4 * layers.starts + buffer.data_ptr()
    copies = None if outs is None else _addresses(outs)
    wrong = library.tw_add_sparse_many(
        len(bases), len(payloads), *map(_pointer, (*table, layers.numels, layers.widths)), 1 / len(payloads),
        _pointer(given), _pointer(targets), _pointer(copies),
    )  # fmt: skip
    if wrong != -1:
        return plain.add_sparse_many(bases, payloads, bounds, outs)  # raises the error
    return _cut_like(buffer, layers.sizes, bases)


def subtract_many(
    library: ctypes.CDLL, tensors: Sequence[Tensor], others: Sequence[Tensor]
) -> tuple[list[Tensor], int]:
    numels = _numels(tensors)
    if not (all(numels) and _all_suit(tensors) and _all_suit(others)):
        return plain.subtract_many(tensors, others)
    layers = _layer_layout(numels)
    buffer = empty(layers.total)
    arrays = (*map(_addresses, (tensors, others)), layers.numels, 4 * layers.starts + buffer.data_ptr())
    first_bad = library.tw_subtract_many(len(numels), *map(_pointer, arrays))
    return _cut_like(buffer, layers.sizes, tensors), int(first_bad)


def _read_sparse(
    payloads: Sequence[Payload], bounds: Sequence[tuple[int, int]], like: Sequence[Tensor]
) -> tuple[_LayerLayout, tuple[Integers, ...] | None]:
    """Values, counts, coded positions and their bytes for each rank of each layer; None if C cannot read them."""
    layers = _layer_layout(_numels(like))
    if not (all(payload.is_contiguous for payload in payloads) and _all_suit(like)):
        return layers, None
    tables = [payload.table() for payload in payloads]
    lengths = np.stack([table.lengths.reshape(-1, 2) for table in tables], 1)  # (layers, ranks, 2)
    num_bytes, kept_bytes = (np.ascontiguousarray(lengths[..., i]) for i in (0, 1))
    limits = np.array(bounds, dtype=np.int64)[..., None]  # (layers, 2, 1)
    counts = kept_bytes >> 2
    if (kept_bytes & 3).any() or (counts < limits[:, 0]).any() or (counts > limits[:, 1]).any():
        return layers, None
    addresses = np.stack([table.addresses.reshape(-1, 2) for table in tables], 1)
    coded, kept = (np.ascontiguousarray(addresses[..., i]) for i in (0, 1))
    return layers, (kept, counts, coded, num_bytes)


def _numels(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple([tensor.numel() for tensor in tensors])


def _suits(tensor: Tensor, dtype: torch.dtype, count: int) -> bool:
    return tensor.dtype == dtype and tensor.numel() == count and tensor.is_cpu and tensor.is_contiguous()


def _all_suit(tensors: Sequence[Tensor]) -> bool:
    return all(t.dtype == torch.float32 and t.is_cpu and t.is_contiguous() for t in tensors)


def _addresses(tensors: Sequence[Tensor]) -> Integers:
    return np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)


def _pointer(array: Any) -> int | None:
    """The address of an array, which the caller must keep alive."""
    return None if array is None else array.ctypes.data


def _integers(values: Sequence[int]) -> Integers:
    return np.array(values, dtype=np.int64)


def _align(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _cut_like(buffer: Tensor, sizes: list[int], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of these shapes, one after another in a buffer."""
    return [
        (piece if piece.numel() == tensor.numel() else piece[: tensor.numel()]).view(tensor.shape)
        for piece, tensor in zip(torch.split(buffer, sizes), tensors, strict=True)
    ]
