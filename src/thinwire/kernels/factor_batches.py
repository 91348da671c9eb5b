"""Factors of all matrices of a batch (PowerSGD), as loops over the kernels of one matrix: the reference of C.

The factors of all layers lie one after another in one vector: of shape (r, rows) or (r, columns) for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..core import all_finite, saturate
from .codes import add_and_project, combine_rows, low_rank, subtract_low_rank
from .matrices import orthonormalize

MatrixForm: TypeAlias = tuple[int, int, int]  # rank, rows, columns


class ProjectedBatch(NamedTuple):
    """The sums x + y of each layer, and their products with the start of the power iteration in one vector.

    first_bad: the first layer with an x that is not finite, or -1; then the rest is void.
    """

    targets: list[Tensor]
    factors: Tensor
    first_bad: int


def project_many(
    tensors: Sequence[Tensor], others: Sequence[Tensor], rights: Sequence[Tensor], forms: Sequence[MatrixForm]
) -> ProjectedBatch | None:
    """x + y and its products with the rows of `rights`, scaled to a largest entry of one; None if a row is zero."""
    starts = []
    for right in rights:
        peaks = right.abs().amax(dim=1, keepdim=True)
        if not bool((peaks > 0).all()):
            return None
        starts.append(right / peaks)
    first_bad = next((i for i, tensor in enumerate(tensors) if not all_finite(tensor)), -1)
    pairs = [
        add_and_project(tensor.reshape(rows, columns), other.reshape(rows, columns), start)
        for tensor, other, start, (_, rows, columns) in zip(tensors, others, starts, forms, strict=True)
    ]
    factors = torch.cat([saturate(factor).flatten() for _, factor in pairs])
    return ProjectedBatch([target for target, _ in pairs], factors, first_bad)


def combine_many(lefts: Tensor, targets: Sequence[Tensor], forms: Sequence[MatrixForm]) -> tuple[Tensor, Tensor]:
    """Orthonormal bases of the left factors, and basis @ target of each layer: two vectors of factors."""
    pieces = torch.split(lefts, [rank * rows for rank, rows, _ in forms])
    bases = [orthonormalize(piece.view(form[0], -1)).float() for piece, form in zip(pieces, forms, strict=True)]
    combined = [saturate(combine_rows(basis, target)) for basis, target in zip(bases, targets, strict=True)]
    return tuple(torch.cat([each.flatten() for each in factors]) for factors in (bases, combined))  # type: ignore[return-value]


def low_rank_many(
    lefts: Tensor, rights: Tensor, forms: Sequence[MatrixForm], outs: Sequence[Tensor], subtract: bool
) -> None:
    """Write leftᵀ @ right of each layer to `outs`, or subtract it from them."""
    left_pieces = torch.split(lefts, [rank * rows for rank, rows, _ in forms])
    right_pieces = torch.split(rights, [rank * columns for rank, _, columns in forms])
    pairs = zip(left_pieces, right_pieces, forms, outs, strict=True)
    for left, right, (rank, rows, columns), out in pairs:
        matrix, factors = out.view(rows, columns), (left.view(rank, rows), right.view(rank, columns))
        if subtract:
            subtract_low_rank(matrix, *factors)
        else:
            matrix.copy_(low_rank(*factors))
