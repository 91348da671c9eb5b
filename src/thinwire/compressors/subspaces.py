"""Leading singular vectors for encoders. Only the sender computes them, so any linear algebra library will do."""

from __future__ import annotations

import torch
from torch import Tensor


def leading_singular_vectors(matrix: Tensor, max_rank: int, max_energy_lost: float | None = None) -> Tensor:
    """Return leading left singular vectors as rows.

    A float32 matrix is decomposed through the Gram matrix of its shorter side, in float64. That is many times cheaper
    than an SVD; what it cannot resolve, 1e-8 of the largest singular value, float32 cannot hold either. A float64
    matrix is decomposed by an SVD.

    Args:
        matrix: (rows, columns).
        max_rank: the largest number of vectors.
        max_energy_lost: take as few vectors as leave out at most this sum of squared singular values.
    """
    rows, columns = matrix.shape
    if matrix.dtype == torch.float64:
        left, values, _ = torch.linalg.svd(matrix, full_matrices=False)
        vectors: Tensor = left.T
        return vectors[: choose_matrix_rank(values.square(), max_rank, max_energy_lost)]
    short = matrix if rows <= columns else matrix.T
    energies, eigenvectors = torch.linalg.eigh(gram_matrix(short))  # ascending; vectors are columns
    vectors = eigenvectors.T.flip(0)
    basis = vectors[: choose_matrix_rank(energies.flip(0).clamp(min=0), max_rank, max_energy_lost)]
    if rows <= columns:
        return basis
    images = (
        matrix @ basis.to(matrix.dtype).T
    )  # (rows, r): orthogonal up to rounding; arbitrary where the matrix is zero
    return orthonormal_rows(images.double().T)


def orthonormal_rows(rows: Tensor) -> Tensor:
    """Return as many orthonormal rows with the same span."""
    columns: Tensor = torch.linalg.qr(rows.T).Q
    return columns.T


def choose_matrix_rank(energies: Tensor, max_rank: int, max_energy_lost: float | None) -> int:
    """Return how many of descending energies to keep, so that the others add up to at most the limit; at least one."""
    if max_energy_lost is None:
        return min(max_rank, len(energies))
    lost = energies.flip(0).cumsum(0).flip(0)  # [r]: energy lost if r are kept
    return max(1, min(max_rank, len(energies), int((lost > max_energy_lost).sum())))


def gram_matrix(matrix: Tensor) -> Tensor:
    """Return matrix @ matrix.T in float64, a few columns at a time so that the float64 copies stay in the cache."""
    total = torch.zeros(len(matrix), len(matrix), dtype=torch.float64, device=matrix.device)
    for columns in torch.split(matrix, max(1, (1 << 18) // max(1, len(matrix))), dim=1):
        wide = columns.double()
        total.addmm_(wide, wide.T)
    return total


def split_singular_values(basis: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Scale rows of an orthonormal basis and their images, so that each side has the root of the singular value."""
    values = torch.linalg.vector_norm(images.double(), dim=1, keepdim=True)
    roots = values.sqrt()
    return basis * roots, torch.where(values > 0, images / roots, 0.0)
