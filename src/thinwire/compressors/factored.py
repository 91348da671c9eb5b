"""What all operators share that send factors of a layer: how it is folded, when that pays, at which scale."""

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
    folded,
    matrix_dims,
    unfolded,
)
from ..wire import expect_parts, expect_vector


class Factored:
    """Base of all that send factors instead of values; a layer whose factors would be as long travels dense.

    Which layers do follows from their shapes; their bytes have the kind "dense" in every report. Contracts hold up to
    the rounding of factors to the layer's type.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.EXPECTS_BYTES})

    dims: Dims | None

    def fold(self, shape: Sequence[int]) -> Dims:
        """The dimensions in which a layer of this shape is factorised."""
        return matrix_dims(shape, self.dims)

    def forms(self, dims: Dims) -> list[Dims]:
        """The shapes of the factors."""
        raise NotImplementedError

    def factors(self, block: Tensor, key: Key) -> Sequence[Tensor]:
        """Of a folded layer, whatever its scale. Only the sender computes them, so any library may help."""
        raise NotImplementedError

    def product(self, factors: Sequence[Tensor], dims: Dims, key: Key, dtype: torch.dtype) -> Tensor:
        """What the factors stand for: the same bits on every machine, and finite."""
        raise NotImplementedError

    def law(self, dims: Dims) -> Contract:
        """The contract of a layer that is factorised."""
        raise NotImplementedError

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        dims = self.fold(tensor.shape)
        if not pays(self.forms(dims), tensor.numel()):
            return Payload.of([vector_part("dense", [tensor], tensor.dtype)])
        return Payload.of([vector_part("factors", self.factors(folded(tensor, dims), key), tensor.dtype)])

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        name = type(self).__name__
        (part,) = expect_parts(payload, 1, name)
        dims = self.fold(spec.shape)
        forms = self.forms(dims)
        if not pays(forms, spec.numel):
            return expect_vector(part, spec.dtype, spec.numel, name).view(spec.shape)
        vector = expect_vector(part, spec.dtype, total(forms), name)
        factors = shaped(vector.to(spec.work_dtype), forms)
        return unfolded(self.product(factors, dims, key, spec.dtype), spec)

    def contract(self, spec: TensorSpec) -> Contract:
        dims = self.fold(spec.shape)
        if not pays(self.forms(dims), spec.numel):
            return Contract(delta=1.0, omega=0.0)
        return self.law(dims)

    def num_bytes(self, spec: TensorSpec) -> float:
        return min(total(self.forms(self.fold(spec.shape))), spec.numel) * spec.dtype.itemsize


def pays(forms: Sequence[Dims], numel: int) -> bool:
    return total(forms) < numel


def total(forms: Sequence[Dims]) -> int:
    return sum(map(math.prod, forms))


def vector_part(kind: str, tensors: Sequence[Tensor], dtype: torch.dtype) -> Part:
    """Tensors one after the other, in the type that is sent."""
    flat = [cast_saturating(tensor, dtype).flatten() for tensor in tensors]
    vector = (torch.cat(flat) if len(flat) > 1 else flat[0]).contiguous()
    return Part(kind, vector, 8.0 * vector.element_size() * vector.numel())


def shaped(vector: Tensor, forms: Sequence[Dims]) -> list[Tensor]:
    pieces = torch.split(vector, [math.prod(form) for form in forms])
    return [piece.view(form) for piece, form in zip(pieces, forms, strict=True)]


_EASY = 30  # numbers of at most 2^30 and at least 2^-30: their squares, sums and products are far from any limit


def at_ease(block: Tensor, factorise: Callable[[Tensor], Sequence[Tensor]]) -> list[Tensor]:
    """factorise(block) for a block of any scale: worked at a moderate one, which the factors then share equally.

    Half precision is worked in float32. Numbers that are not finite give factors of NaN, which decoders refuse.
    """
    if block.dtype != torch.float64:
        block = block.float()
    least, most = (float(end) for end in torch.aminmax(block))
    peak = max(-least, most)
    if not math.isfinite(peak):
        return [torch.full_like(factor, math.nan) for factor in factorise(torch.zeros_like(block))]
    exponent = math.frexp(peak)[1]
    if peak == 0 or abs(exponent) <= _EASY:
        return balanced(factorise(block), 0)
    exponent = max(exponent, -1000)  # the smallest doubles would need a factor that is none
    return balanced(factorise((block.double() * 2.0**-exponent).to(block.dtype)), exponent)


def balanced(factors: Sequence[Tensor], exponent: int) -> list[Tensor]:
    """Factors times powers of two, which make 2^exponent together: their largest entries then differ by two at most.

    So half precision can hold them: the product of many may be longer than its largest number, or far below its least.
    """
    peaks = [math.frexp(float(factor.abs().amax())) for factor in factors]
    if any(mantissa == 0 for mantissa, _ in peaks):
        return [torch.zeros_like(factor) for factor in factors]
    share, spare = divmod(exponent + sum(own for _, own in peaks), len(factors))
    turns = [share + (i < spare) - own for i, (_, own) in enumerate(peaks)]
    return [factor.double() * math.ldexp(1.0, min(turn, 1000)) for factor, turn in zip(factors, turns, strict=True)]


def check_rank(part: str, rank: int | None) -> None:
    if rank is not None and rank < 1:
        raise CompositionError(f"{part}: rank must be at least 1, got {rank}; 4 is usual")


def check_dims(part: str, dims: Dims | None, example: Dims = (14, 8)) -> None:
    """Whole numbers above zero, at least two of them; exactly two if the example has two."""
    if dims is None:
        return
    whole = all(type(n) is int and n > 0 for n in dims)
    if not whole or len(dims) < 2 or (len(example) == 2 and len(dims) > 2):
        raise CompositionError(
            f"{part}: dims must be whole numbers such as {example}, got {dims}; without them, shapes decide"
        )
