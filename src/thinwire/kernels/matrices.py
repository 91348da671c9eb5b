"""Products and bases that have the same bits whoever computes them, whatever linear algebra the machine has.

A product of matrices is summed in another order, or with fused operations, by every BLAS and for every processor; ranks
that decode by such products drift apart. Here factors are rounded to as many bits as leave every product and every
partial sum exact in float64: then order does not matter, and the fastest library of the machine may do the work.
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
_BLOCK = 1 << 16  # elements of a product worked at a time: they stay in the processor's cache until they are rounded


def agreed_product(left: Tensor, right: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """left @ right, the same bits on every machine; rounded to `dtype`, what it cannot hold is its largest number.

    Factors keep 24 bits below their largest entry (a little less where more than 32 products are added): the error is
    that of a good float32 product. For float64 they keep twice that, and it takes three products.
    """
    bits = (_MANTISSA - max(1, left.shape[1]).bit_length()) // 2
    a, b = _fixed_point(left, bits), _fixed_point(right, bits)
    exponent, limit = a.exponent + b.exponent, torch.finfo(dtype).max
    may_overflow = exponent + _MANTISSA >= math.frexp(limit)[1]
    early = min(exponent, 1023 - _MANTISSA)  # no sum may overflow on its way: which one would, depends on the order
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
    """2^bits units reach the largest entry."""
    peak = float(matrix.abs().amax()) if matrix.numel() else 0.0
    exponent = max(_LEAST_UNIT, math.frexp(peak)[1] - bits)
    units = matrix.double() * 2.0**-exponent
    whole = units.round()
    return _Fixed(whole, units.sub_(whole).mul_(2.0**bits).round_().mul_(2.0**-bits), exponent)


NOTHING = 1e-20  # of a column's energy


def orthonormal(rows: Tensor) -> Tensor:
    """An orthonormal basis of what the rows span, in their order, as float64; the same bits on every machine.

    A row that adds nothing to those before it (zeros, a repetition) becomes zero. Gram and Schmidt's way, modified;
    all sums are taken along fixed trees. Bases are kept as rows, because products with many rows and few columns are
    several times slower in some libraries than the same products the other way round.
    """
    basis = rows.double()
    peaks = basis.abs().amax(dim=1, keepdim=True) if basis.numel() else basis[:, :1]
    basis = basis / torch.where(peaks > 0, peaks, 1.0)  # so that no square overflows or vanishes
    before = tree_sum(basis * basis).tolist()
    for j, row in enumerate(basis):
        energy = float(tree_sum(row * row))
        if energy <= NOTHING * before[j]:
            row.zero_()
            continue
        row /= math.sqrt(energy)
        later = basis[j + 1 :]
        if later.numel():
            later -= tree_sum(later * row)[:, None] * row
    return basis


def noise_matrix(rows: int, columns: int, key: Key, device: torch.device) -> Tensor:
    """Independent numbers of mean zero, nearly normal (sums of four uniform ones); the same bits everywhere."""
    draws = noise16(key, 4 * rows * columns, device).view(4, rows, columns).double()
    return (draws[0] + draws[1] + draws[2] + draws[3] - 2.0 * 65535) * (math.sqrt(3.0) / 65536)
