"""Matrix products and orthonormal bases with the same bits on every machine.

Every BLAS sums a product in its own order, or with fused operations, so ranks that decode by such products would drift
apart. Here factors are rounded to so few bits that every product and every partial sum is exact in float64: then the
order does not matter, and the fastest library of the machine can be used.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import Key
from .reference import noise16, tree_sum

_MANTISSA = 53  # bits of float64
_LEAST_UNIT = -537  # as a power of two: the product of two units is the smallest number of float64
_BLOCK = 1 << 16  # elements of a product computed at a time, so that they fit the processor's cache


def reproducible_matmul(left: Tensor, right: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """left @ right with the same bits on every machine, rounded to `dtype` and saturated.

    Factors keep 24 bits below their largest entry (a little less where more than 32 products are added): the error is
    that of a good float32 product. For float64 they keep twice that, and it takes three products.
    """
    bits = (_MANTISSA - max(1, left.shape[1]).bit_length()) // 2
    a, b = _fixed_point(left, bits), _fixed_point(right, bits)
    exponent, limit = a.exponent + b.exponent, torch.finfo(dtype).max
    may_overflow = exponent + _MANTISSA >= math.frexp(limit)[1]
    early = min(exponent, 1023 - _MANTISSA)  # no partial sum may overflow: which one would depends on the order
    late = 2.0 ** min(exponent - early, 1023)
    whole, rest = a.whole * 2.0**early, a.rest * 2.0**early
    fine = dtype == torch.float64 and early > -1000  # near the smallest numbers, products of rests are not exact
    rows, columns = left.shape[0], right.shape[1]
    out = torch.empty(rows, columns, dtype=dtype, device=left.device)
    step = max(1, _BLOCK // max(1, columns))
    block = torch.empty(min(rows, step), columns, dtype=torch.float64, device=left.device)
    for start in range(0, rows, step):
        here = slice(start, start + step)
        part = torch.mm(whole[here], b.whole, out=block[: rows - start])
        if fine:
            part += torch.mm(whole[here], b.rest) + torch.mm(rest[here], b.whole)
        out[here] = part.mul_(late).clamp_(-limit, limit) if may_overflow else part
    return out


class _Fixed(NamedTuple):
    """A matrix in units of 2^exponent, as float64: whole ones, and what they leave, in units 2^bits times smaller.

    Whole numbers of so few bits that sums of products stay below 2^53 are exact in whatever order they are added.
    """

    whole: Tensor
    rest: Tensor
    exponent: int


def _fixed_point(matrix: Tensor, bits: int) -> _Fixed:
    """The matrix in units so that the largest entry is at most 2^bits."""
    peak = float(matrix.abs().amax()) if matrix.numel() else 0.0
    exponent = max(_LEAST_UNIT, math.frexp(peak)[1] - bits)
    units = matrix.double() * 2.0**-exponent
    whole = units.round()
    return _Fixed(whole, units.sub_(whole).mul_(2.0**bits).round_().mul_(2.0**-bits), exponent)


NEGLIGIBLE = 1e-20  # fraction of a row's energy


def orthonormalize(rows: Tensor) -> Tensor:
    """An orthonormal basis of the span of the rows, as float64, with the same bits on every machine.

    Modified Gram-Schmidt with sums along fixed trees. A row that depends on those before it (zeros, a repetition)
    becomes zero. Bases are stored as rows, because products with many rows and few columns are several times slower in
    some libraries than the transposed products.
    """
    basis = rows.double()
    peaks = basis.abs().amax(dim=1, keepdim=True) if basis.numel() else basis[:, :1]
    basis = basis / torch.where(peaks > 0, peaks, 1.0)  # so that no square overflows or vanishes
    before = tree_sum(basis * basis).tolist()
    for j, row in enumerate(basis):
        energy = float(tree_sum(row * row))
        if energy <= NEGLIGIBLE * before[j]:
            row.zero_()
            continue
        row /= math.sqrt(energy)
        later = basis[j + 1 :]
        if later.numel():
            later -= tree_sum(later * row)[:, None] * row
    return basis


def noise_matrix(rows: int, columns: int, key: Key, device: torch.device) -> Tensor:
    """Independent, nearly normal numbers with mean 0 (sums of four uniform ones), the same bits on every machine."""
    draws = noise16(key, 4 * rows * columns, device).view(4, rows, columns).double()
    return (draws[0] + draws[1] + draws[2] + draws[3] - 2.0 * 65535) * (math.sqrt(3.0) / 65536)
