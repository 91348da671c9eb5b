"""The C kernels for matrices and their factors, as functions of tensors; see `calls`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ..matrices import NOTHING
from .calls import _at, _room


def low_rank(library: ctypes.CDLL, out: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    (rank, rows), columns = left.shape, right.shape[1]
    room = _room(out, rows * columns)
    library.tw_low_rank(_at(left, rank * rows), _at(right, rank * columns), rank, rows, columns, room.data_ptr())
    return room.view(rows, columns)


def subtract_low_rank(library: ctypes.CDLL, matrix: Tensor, left: Tensor, right: Tensor) -> None:
    (rank, rows), columns = left.shape, right.shape[1]
    factors = _at(left, rank * rows), _at(right, rank * columns)
    library.tw_subtract_low_rank(_at(matrix, rows * columns), *factors, rank, rows, columns)


def orthonormal(library: ctypes.CDLL, rows: Tensor) -> Tensor:
    basis = rows.to(torch.float64, copy=True)
    count, n = basis.shape
    width = 1 << (n - 1).bit_length()
    before, sums = torch.empty(count, dtype=torch.float64), torch.empty(width, dtype=torch.float64)
    library.tw_orthonormal(
        _at(basis, count * n, torch.float64), count, n, NOTHING, before.data_ptr(), sums.data_ptr(), width
    )
    return basis
