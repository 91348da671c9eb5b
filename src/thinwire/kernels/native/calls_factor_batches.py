"""The C kernels of kernels/factor_batches.py; see `calls`. What does not suit C is done by the loops."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ...core.payloads import Integers
from .. import factor_batches as plain
from ..factor_batches import MatrixForm, ProjectedBatch
from ..matrices import NEGLIGIBLE
from ..memory import empty
from .calls_batches import _LINE, _addresses, _align, _all_suit, _cut_like, _pointer

_MISSING_MEMORY, _ZERO_ROW = -2, -3


class _FactorLayout(NamedTuple):
    """Arguments of C for matrices of these forms."""

    ranks: Integers
    rows: Integers
    columns: Integers
    left_numbers: int  # of all left factors
    right_numbers: int
    target_sizes: list[int]  # with the gaps that alignment leaves
    target_starts: Integers


@lru_cache(maxsize=256)  # the same for a bucket at every step
def _factor_layout(forms: tuple[MatrixForm, ...]) -> _FactorLayout:
    ranks, rows, columns = (np.array(numbers, dtype=np.int64) for numbers in zip(*forms, strict=True))
    sizes = [_align(height * width, _LINE) for _, height, width in forms]
    starts = np.cumsum([0, *sizes[:-1]]).astype(np.int64)
    return _FactorLayout(ranks, rows, columns, int(ranks @ rows), int(ranks @ columns), sizes, starts)


def project_many(
    library: ctypes.CDLL,
    tensors: Sequence[Tensor],
    others: Sequence[Tensor],
    rights: Sequence[Tensor],
    forms: Sequence[MatrixForm],
) -> ProjectedBatch | None:
    if not (_all_suit(tensors) and _all_suit(others) and _all_suit(rights)):
        return plain.project_many(tensors, others, rights, forms)
    layout = _factor_layout(tuple(forms))
    buffer, factors = empty(sum(layout.target_sizes)), empty(layout.left_numbers)
    targets = 4 * layout.target_starts + buffer.data_ptr()
    arrays = (*map(_addresses, (tensors, others, rights)), layout.ranks, layout.rows, layout.columns, targets)
    found = library.tw_project_many(len(forms), *map(_pointer, arrays), factors.data_ptr())
    if found == _ZERO_ROW:
        return None
    if found == _MISSING_MEMORY:
        return plain.project_many(tensors, others, rights, forms)
    return ProjectedBatch(_cut_like(buffer, layout.target_sizes, tensors), factors, found)


def combine_many(
    library: ctypes.CDLL, lefts: Tensor, targets: Sequence[Tensor], forms: Sequence[MatrixForm]
) -> tuple[Tensor, Tensor]:
    layout = _factor_layout(tuple(forms))
    if not (_all_suit([lefts]) and lefts.numel() == layout.left_numbers):
        return plain.combine_many(lefts, _as_matrices(targets, forms), forms)
    bases, combined = empty(layout.left_numbers), empty(layout.right_numbers)
    arrays = (layout.ranks, layout.rows, layout.columns, _addresses(targets))
    failed = library.tw_combine_many(
        len(forms), lefts.data_ptr(), *map(_pointer, arrays), NEGLIGIBLE, bases.data_ptr(), combined.data_ptr()
    )
    return plain.combine_many(lefts, _as_matrices(targets, forms), forms) if failed else (bases, combined)


def low_rank_many(
    library: ctypes.CDLL,
    lefts: Tensor,
    rights: Tensor,
    forms: Sequence[MatrixForm],
    outs: Sequence[Tensor],
    subtract: bool,
) -> None:
    layout = _factor_layout(tuple(forms))
    sizes = lefts.numel() == layout.left_numbers and rights.numel() == layout.right_numbers
    if not (sizes and _all_suit([lefts, rights]) and _all_suit(outs)):
        plain.low_rank_many(lefts, rights, forms, outs, subtract)
        return
    arrays, targets = (layout.ranks, layout.rows, layout.columns), _addresses(outs)
    library.tw_low_rank_many(
        len(forms), lefts.data_ptr(), rights.data_ptr(), *map(_pointer, arrays), subtract, _pointer(targets)
    )


def _as_matrices(targets: Sequence[Tensor], forms: Sequence[MatrixForm]) -> list[Tensor]:
    return [target.view(rows, columns) for target, (_, rows, columns) in zip(targets, forms, strict=True)]
