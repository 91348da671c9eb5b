"""Quantizers as torch expressions: the reference that the C kernels match bit for bit.

Codes are packed little-endian. Sums of decoded payloads are taken in order, each scaled by 1/n before it is added: a
fused multiply-add would round once on some processors and twice on others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core import DecodeError, Key, saturate
from .packing import pack, unpack
from .reference import largest, mean_magnitude, noise16

SMALLEST_NORM = 2.0**-112  # a block's norm is at least this, so that levels / norm stays finite for 16 bits too


def as_blocks(flat: Tensor, block: int) -> Tensor:
    """(blocks, width) with the last block filled up with zeros; no wider than the tensor is long."""
    width = max(1, min(block, flat.numel()))
    return pad(flat, (0, -flat.numel() % width)).view(-1, width)


def block_peaks(flat: Tensor, block: int) -> Tensor:
    """The largest magnitude of each block, float32."""
    return as_blocks(flat, block).abs().amax(dim=1) if flat.numel() else flat


def qsgd_encode(flat: Tensor, bits: int, block: int, key: Key, norms: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """QSGD: sign and a random one of the two levels next to |x| / norm, packed; and the norms (peaks by default)."""
    levels = (1 << (bits - 1)) - 1
    if norms is None:
        norms = block_peaks(flat, block).clamp(min=SMALLEST_NORM)
    blocks = as_blocks(flat, block)
    places = blocks.abs() * (levels / norms)[:, None]
    level = torch.floor(places + _draws(key, blocks)).to(torch.int32).clamp(max=levels)
    codes = level | (blocks < 0).to(torch.int32) << (bits - 1)
    return pack(codes.flatten()[: flat.numel()], bits), norms


def _draws(key: Key, like: Tensor) -> Tensor:
    """One uniform number from (0, 1) per element."""
    return (noise16(key, like.numel(), like.device).view_as(like) + 0.5) * 2.0**-16


def qsgd_decode(packed: Tensor, norms: Tensor, count: int, bits: int, block: int) -> Tensor:
    levels, codes = (1 << (bits - 1)) - 1, unpack(packed, count, bits)
    level = (codes & levels).to(torch.float32) * (1.0 / levels)
    signed = torch.where(codes > levels, -level, level)
    return (as_blocks(signed, block) * norms[:, None]).flatten()[:count]


def qsgd_mean(packed: Sequence[Tensor], norms: Sequence[Tensor], count: int, bits: int, block: int) -> Tensor:
    pairs = zip(packed, norms, strict=True)
    return _mean([qsgd_decode(codes, scales, count, bits, block) for codes, scales in pairs])


def qsgd_feedback(flat: Tensor, before: Tensor, bits: int, block: int, key: Key) -> tuple[Tensor, Tensor, Tensor]:
    """qsgd_encode(flat + before), and the new residual."""
    target = add_saturated(flat, before)
    packed, norms = qsgd_encode(target, bits, block, key)
    return packed, norms, saturate(target - qsgd_decode(packed, norms, flat.numel(), bits, block))


def uniform_encode(flat: Tensor, bits: int, block: int, stochastic: bool, key: Key) -> tuple[Tensor, Tensor]:
    """x / peak * levels, rounded to nearest (half to even) or stochastically, packed from 0 on; and the peaks."""
    levels, peaks = (1 << (bits - 1)) - 1, block_peaks(flat, block).clamp(min=SMALLEST_NORM)
    blocks = as_blocks(flat, block)
    places = blocks * (levels / peaks)[:, None]
    steps = torch.floor(places + _draws(key, blocks)) if stochastic else torch.round(places)
    codes = (steps.clamp(-levels, levels) + levels).to(torch.int32)
    return pack(codes.flatten()[: flat.numel()], bits), peaks


def uniform_decode(packed: Tensor, peaks: Tensor, count: int, bits: int, block: int) -> Tensor:
    levels, codes = (1 << (bits - 1)) - 1, unpack(packed, count, bits)
    refuse_code(int(codes.amax()) if count else 0, bits)
    return (as_blocks((codes - levels) * (1.0 / levels), block) * peaks[:, None]).flatten()[:count]


def refuse_code(largest_code: int, bits: int) -> None:
    """Raise DecodeError for the one code that the encoder never writes."""
    if largest_code > (1 << bits) - 2:
        raise DecodeError(f"Uniform: a code above {(1 << bits) - 2} is never sent")


def uniform_mean(packed: Sequence[Tensor], peaks: Sequence[Tensor], count: int, bits: int, block: int) -> Tensor:
    pairs = zip(packed, peaks, strict=True)
    return _mean([uniform_decode(codes, scales, count, bits, block) for codes, scales in pairs])


def uniform_feedback(
    flat: Tensor, before: Tensor, bits: int, block: int, stochastic: bool, key: Key
) -> tuple[Tensor, Tensor, Tensor]:
    """uniform_encode(flat + before), and the new residual."""
    target = add_saturated(flat, before)
    packed, peaks = uniform_encode(target, bits, block, stochastic, key)
    return packed, peaks, saturate(target - uniform_decode(packed, peaks, flat.numel(), bits, block))


def natural_encode(flat: Tensor, key: Key, window: int, most: int) -> Tensor:
    """Stochastically rounded exponents of float32: clamp(exponent - window, 0, most) as uint8.

    The mantissa is the probability of rounding up: noise is added below the exponent, and may carry into it.
    """
    magnitude = flat.view(torch.int32) & 0x7FFFFFFF
    noise = (noise16(key, flat.numel(), flat.device) << 7) + 64  # 23 bits, as many as a mantissa has
    return (((magnitude + noise) >> 23) - window).clamp(0, most).to(torch.uint8)


def natural_encode_signed(flat: Tensor, key: Key, window: int) -> Tensor:
    """The same in 7 bits, and the sign in the eighth."""
    return natural_encode(flat, key, window, 127) | (flat < 0).to(torch.uint8) << 7


def natural_decode_signed(codes: Tensor, window: int) -> Tensor:
    wide = codes.to(torch.int32)
    exponents = wide & 127
    bits = (wide & 128) << 24 | (exponents + window) << 23
    return torch.where(exponents > 0, bits, 0).view(torch.float32)


def natural_mean(codes: Sequence[Tensor], window: int) -> Tensor:
    return _mean([natural_decode_signed(each, window) for each in codes])


def natural_feedback(flat: Tensor, before: Tensor, key: Key, window: int) -> tuple[Tensor, Tensor]:
    """natural_encode_signed(flat + before), and the new residual."""
    target = add_saturated(flat, before)
    codes = natural_encode_signed(target, key, window)
    return codes, saturate(target - natural_decode_signed(codes, window))


def exponents_decode(exponents: Tensor, signs: Tensor) -> Tensor:
    """Powers of two from a plane of float32's exponents and a plane of sign bits."""
    negative = unpack(signs, exponents.numel(), 1).to(torch.int32)
    return ((negative << 31) | (exponents.to(torch.int32) << 23)).view(torch.float32)


def exponents_mean(exponents: Sequence[Tensor], signs: Sequence[Tensor]) -> Tensor:
    return _mean([exponents_decode(*planes) for planes in zip(exponents, signs, strict=True)])


def exponents_feedback(flat: Tensor, before: Tensor, key: Key, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """natural_encode(flat + before, window=0), its signs, and the new residual."""
    target = add_saturated(flat, before)
    exponents, signs = natural_encode(target, key, 0, most), pack_signs(target)
    return exponents, signs, saturate(target - exponents_decode(exponents, signs))


def pack_signs(flat: Tensor) -> Tensor:
    """One bit per number, eight in a byte: 1 if it is negative."""
    return pack(flat < 0, 1)


def sign_encode(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Packed signs, and the mean magnitude."""
    return pack_signs(flat), mean_magnitude(flat)


def sign_decode(signs: Tensor, scale: Tensor, count: int) -> Tensor:
    return torch.where(unpack(signs, count, 1).to(torch.bool), -scale, scale)


def sign_mean(signs: Sequence[Tensor], scales: Sequence[Tensor], count: int) -> Tensor:
    return _mean([sign_decode(bits, scale, count) for bits, scale in zip(signs, scales, strict=True)])


def sign_feedback(flat: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """sign_encode(flat + before), and the new residual."""
    target = add_saturated(flat, before)
    signs, scale = sign_encode(target)
    return signs, scale, saturate(target - sign_decode(signs, scale.reshape(1), flat.numel()))


def scatter(values: Tensor, positions: Tensor, count: int) -> Tensor:
    """A vector of `count` numbers with these values at these positions, else zero."""
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_put_((positions,), values)


def take(flat: Tensor, positions: Tensor) -> Tensor:
    return flat[positions]


def low_rank(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ @ right for factors of few rows (r × rows, r × columns), saturated."""
    return saturate(_sum_of_products(left, right))


def subtract_low_rank(matrix: Tensor, left: Tensor, right: Tensor) -> None:
    """matrix -= leftᵀ @ right, in place and saturated."""
    matrix.copy_(saturate(matrix - _sum_of_products(left, right)))


def add_and_project(matrix: Tensor, other: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """matrix + other, saturated, and basis @ its transpose (r × rows).

    This product and the next are summed in the fastest order, so their last bits depend on the machine: use them
    only for what one rank computes and then sends.
    """
    target = add_saturated(matrix, other)
    return target, basis @ target.T


def combine_rows(basis: Tensor, matrix: Tensor) -> Tensor:
    """basis @ matrix, for a basis of few rows (r × rows); bits as in `add_and_project`."""
    return basis @ matrix


def _sum_of_products(left: Tensor, right: Tensor) -> Tensor:
    """The sum of outer products, added in order, so that all processors get the same bits."""
    total = left[0][:, None] * right[0]
    for column, row in zip(left[1:], right[1:], strict=True):
        total += column[:, None] * row
    return total


def subtract_at(flat: Tensor, positions: Tensor, values: Tensor) -> None:
    """flat[positions] -= values, in place and saturated; positions are distinct."""
    flat[positions] = saturate(flat[positions] - values)


def add_saturated(flat: Tensor, other: Tensor) -> Tensor:
    return saturate(flat + other)


def largest_magnitudes(flat: Tensor, k: int) -> Tensor:
    """Positions of the k largest |x|, ascending; of equal ones the first."""
    return largest(flat.abs(), k)


def positions_reaching(flat: Tensor, level: float) -> Tensor:
    """Positions of all |x| >= level, ascending. The level is rounded to the tensor's type."""
    return (flat.abs() >= level).nonzero().flatten()


def count_below(flat: Tensor, level: float) -> int:
    """The number of |x| < level."""
    return int(torch.count_nonzero(flat.abs() < level))


def _mean(decoded: Sequence[Tensor]) -> Tensor:
    total = torch.zeros_like(decoded[0])
    for each in decoded:
        total += each * (1 / len(decoded))
    return total
