"""Leading singular vectors, for those who send them. Nobody else computes these, so the machine's libraries may."""

from __future__ import annotations

import torch
from torch import Tensor


def principal(matrix: Tensor, most: int, spare: float | None = None) -> Tensor:
    """Leading left singular vectors as rows: `most`, or as few of them as leave out an energy of at most `spare`.

    A float32 matrix is seen through its Gram matrix of the shorter side, in float64: many times cheaper than its
    singular value decomposition, and what that cannot resolve, 1e-8 of the largest singular value, float32 cannot hold
    either. A float64 matrix is decomposed itself.
    """
    rows, columns = matrix.shape
    if matrix.dtype == torch.float64:
        columns_of, values, _ = torch.linalg.svd(matrix, full_matrices=False)
        vectors: Tensor = columns_of.T
        return vectors[: enough(values.square(), most, spare)]
    short = matrix if rows <= columns else matrix.T
    energies, turned = torch.linalg.eigh(gram(short))  # ascending; vectors are columns
    vectors = turned.T.flip(0)
    basis = vectors[: enough(energies.flip(0).clamp(min=0), most, spare)]
    if rows <= columns:
        return basis
    images = matrix @ basis.to(matrix.dtype).T  # (rows, r): orthogonal but for rounding; those of nothing are anything
    return row_basis(images.double().T)


def row_basis(rows: Tensor) -> Tensor:
    """As many orthonormal rows, which span the given ones."""
    columns: Tensor = torch.linalg.qr(rows.T).Q
    return columns.T


def enough(energies: Tensor, most: int, spare: float | None) -> int:
    """How many of descending energies to keep, so that the others add up to at most `spare`; at least one."""
    if spare is None:
        return min(most, len(energies))
    left_out = energies.flip(0).cumsum(0).flip(0)  # [r]: what keeping r leaves out
    return max(1, min(most, len(energies), int((left_out > spare).sum())))


def gram(matrix: Tensor) -> Tensor:
    """matrix @ matrix.T in float64, a few columns at a time: they stay in the cache while they are long."""
    total = torch.zeros(len(matrix), len(matrix), dtype=torch.float64, device=matrix.device)
    for columns in torch.split(matrix, max(1, (1 << 18) // max(1, len(matrix))), dim=1):
        wide = columns.double()
        total.addmm_(wide, wide.T)
    return total


def halved(basis: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of an orthonormal basis and their images, each pair with half of its singular value on either side."""
    values = torch.linalg.vector_norm(images.double(), dim=1, keepdim=True)
    roots = values.sqrt()
    return basis * roots, torch.where(values > 0, images / roots, 0.0)
