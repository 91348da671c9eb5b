"""The C kernels for matrices and their factors, as functions of tensors; see `calls`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ..matrices import NEGLIGIBLE
from ..memory import empty
from .calls import _at, _output


def low_rank(library: ctypes.CDLL, out: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    (rank, rows), columns = left.shape, right.shape[1]
    output = _output(out, rows * columns)
    library.tw_low_rank(_at(left, rank * rows), _at(right, rank * columns), rank, rows, columns, output.data_ptr())
    return output.view(rows, columns)


def subtract_low_rank(library: ctypes.CDLL, matrix: Tensor, left: Tensor, right: Tensor) -> None:
    (rank, rows), columns = left.shape, right.shape[1]
    factors = _at(left, rank * rows), _at(right, rank * columns)
    library.tw_subtract_low_rank(_at(matrix, rows * columns), *factors, rank, rows, columns)


def add_and_project(library: ctypes.CDLL, matrix: Tensor, other: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    (rank, columns), rows = basis.shape, matrix.shape[0]
    target, seen = empty(rows * columns), torch.empty(rank, rows)
    given = _at(matrix, rows * columns), _at(other, rows * columns), _at(basis, rank * columns)
    library.tw_add_and_project(*given, rank, rows, columns, target.data_ptr(), seen.data_ptr())
    return target.view(rows, columns), seen


def combine_rows(library: ctypes.CDLL, basis: Tensor, matrix: Tensor) -> Tensor:
    (rank, rows), columns = basis.shape, matrix.shape[1]
    out = torch.empty(rank, columns)
    library.tw_combine_rows(_at(basis, rank * rows), _at(matrix, rows * columns), rank, rows, columns, out.data_ptr())
    return out


def orthonormalize(library: ctypes.CDLL, rows: Tensor) -> Tensor:
    basis = rows.to(torch.float64, copy=True)
    count, n = basis.shape
    width = 1 << (n - 1).bit_length()
    before, sums = torch.empty(count, dtype=torch.float64), torch.empty(width, dtype=torch.float64)
    library.tw_orthonormal(
        _at(basis, count * n, torch.float64), count, n, NEGLIGIBLE, before.data_ptr(), sums.data_ptr(), width
    )
    return basis
