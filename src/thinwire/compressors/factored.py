"""Base of low-rank and tensor compressors: send factors of the folded layer, or the dense layer if that is shorter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    Capabilities,
    Capability,
    CompositionError,
    Contract,
    Dims,
    Key,
    Part,
    Payload,
    TensorSpec,
    cast_saturating,
    fold,
    matrix_dims,
    unfold,
)
from ..wire import expect_parts, expect_vector


class FactoredCompressor:
    """Base of compressors that send factors. A layer is sent dense if its factors would not be shorter.

    Which layers are sent dense follows from their shapes; their bytes have the kind "dense" in every report. Contracts
    hold up to the rounding of factors to the layer's type.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.EXPECTS_BYTES})

    dims: Dims | None

    def fold_dims(self, shape: Sequence[int]) -> Dims:
        """Return the dimensions in which a layer of this shape is factorized."""
        return matrix_dims(shape, self.dims)

    def factor_shapes(self, dims: Dims) -> list[Dims]:
        """Return the shapes of the factors."""
        raise NotImplementedError

    def factorize(self, block: Tensor, key: Key) -> Sequence[Tensor]:
        """Factorize a folded layer of any scale. Only the sender does this, so any linear algebra library will do."""
        raise NotImplementedError

    def multiply(self, factors: Sequence[Tensor], dims: Dims, key: Key, dtype: torch.dtype) -> Tensor:
        """Return the product of the factors: finite, and the same bits on every machine."""
        raise NotImplementedError

    def factored_contract(self, dims: Dims) -> Contract:
        """Return the contract of a layer that is factorized."""
        raise NotImplementedError

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        dims = self.fold_dims(tensor.shape)
        if not is_shorter(self.factor_shapes(dims), tensor.numel()):
            return Payload.of([make_vector_part("dense", [tensor], tensor.dtype)])
        return Payload.of([make_vector_part("factors", self.factorize(fold(tensor, dims), key), tensor.dtype)])

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        name = type(self).__name__
        (part,) = expect_parts(payload, 1, name)
        dims = self.fold_dims(spec.shape)
        shapes = self.factor_shapes(dims)
        if not is_shorter(shapes, spec.numel):
            return expect_vector(part, spec.dtype, spec.numel, name).view(spec.shape)
        vector = expect_vector(part, spec.dtype, total_numel(shapes), name)
        factors = split_vector(vector.to(spec.work_dtype), shapes)
        return unfold(self.multiply(factors, dims, key, spec.dtype), spec)

    def contract(self, spec: TensorSpec) -> Contract:
        dims = self.fold_dims(spec.shape)
        if not is_shorter(self.factor_shapes(dims), spec.numel):
            return Contract(delta=1.0, omega=0.0)
        return self.factored_contract(dims)

    def num_bytes(self, spec: TensorSpec) -> float:
        return min(total_numel(self.factor_shapes(self.fold_dims(spec.shape))), spec.numel) * spec.dtype.itemsize


def is_shorter(shapes: Sequence[Dims], numel: int) -> bool:
    """Whether factors of these shapes have fewer numbers than the layer."""
    return total_numel(shapes) < numel


def total_numel(shapes: Sequence[Dims]) -> int:
    """Return how many numbers tensors of these shapes have together."""
    return sum(map(math.prod, shapes))


def make_vector_part(kind: str, tensors: Sequence[Tensor], dtype: torch.dtype) -> Part:
    """Concatenate tensors into one vector of the type that is sent."""
    flat = [cast_saturating(tensor, dtype).flatten() for tensor in tensors]
    vector = (torch.cat(flat) if len(flat) > 1 else flat[0]).contiguous()
    return Part(kind, vector, 8.0 * vector.element_size() * vector.numel())


def split_vector(vector: Tensor, shapes: Sequence[Dims]) -> list[Tensor]:
    """Cut a vector into tensors of these shapes."""
    pieces = torch.split(vector, [math.prod(shape) for shape in shapes])
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


_SAFE_EXPONENT = 30  # up to 2^30 and from 2^-30 on, squares, sums and products are far from overflow and underflow


def factorize_scaled(block: Tensor, factorize: Callable[[Tensor], Sequence[Tensor]]) -> list[Tensor]:
    """Return factorize(block), computed at a moderate scale that is then spread evenly over the factors.

    Half precision is computed in float32. A block that is not finite gives factors of NaN, which decoders refuse.
    """
    if block.dtype != torch.float64:
        block = block.float()
    low, high = (float(end) for end in torch.aminmax(block))
    peak = max(-low, high)
    if not math.isfinite(peak):
        return [torch.full_like(factor, math.nan) for factor in factorize(torch.zeros_like(block))]
    exponent = math.frexp(peak)[1]
    if peak == 0 or abs(exponent) <= _SAFE_EXPONENT:
        return balance_scales(factorize(block), 0)
    exponent = max(exponent, -1000)  # 2^1074, for the smallest doubles, is not a double
    return balance_scales(factorize((block.double() * 2.0**-exponent).to(block.dtype)), exponent)


def balance_scales(factors: Sequence[Tensor], exponent: int) -> list[Tensor]:
    """Multiply factors by powers of two with the product 2^exponent, so that their peaks differ by at most two.

    Half precision can then hold them also where it could not hold their product.
    """
    peaks = [math.frexp(float(factor.abs().amax())) for factor in factors]
    if any(mantissa == 0 for mantissa, _ in peaks):
        return [torch.zeros_like(factor) for factor in factors]
    share, spare = divmod(exponent + sum(own for _, own in peaks), len(factors))
    shifts = [share + (i < spare) - own for i, (_, own) in enumerate(peaks)]
    return [factor.double() * math.ldexp(1.0, min(shift, 1000)) for factor, shift in zip(factors, shifts, strict=True)]


def check_rank(part: str, rank: int | None) -> None:
    """Raise CompositionError unless the rank is None or at least 1."""
    if rank is not None and rank < 1:
        raise CompositionError(f"{part}: rank must be at least 1, got {rank}; 4 is usual")


def check_dims(part: str, dims: Dims | None, example: Dims = (14, 8)) -> None:
    """Raise CompositionError unless dims are two or more positive integers; exactly two if the example has two."""
    if dims is None:
        return
    are_positive = all(type(n) is int and n > 0 for n in dims)
    if not are_positive or len(dims) < 2 or (len(example) == 2 and len(dims) > 2):
        raise CompositionError(
            f"{part}: dims must be positive integers such as {example}, got {dims}; without dims, shapes decide"
        )
