"""Storage of error-feedback residuals (float32, bfloat16 or int8 with block scales), and the base class of memories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core import (
    Aggregator,
    CompositionError,
    Context,
    Key,
    MemoryItem,
    SendForm,
    TensorSpec,
    adopt_into,
    cast_saturating,
    derive_key,
    mean_state,
    memory_items,
    merge_memories,
    saturate,
    send_form_around,
    split_kind,
)
from ..kernels import noise16
from ..kernels.memory import zeros

RESIDUAL_DTYPES = ("fp32", "bf16", "int8")
BLOCK = 256
LEVELS = 127
_MIN_SCALE = 2.0**-126  # so that x / scale stays finite and exact enough
_MAX_FLOAT32_BITS = 0x7F7FFFFF  # the largest finite float32
_BFLOAT16_MASK = -0x10000  # of a float32's 32 bits, the 16 that make a bfloat16
_RESIDUAL_KEY = "residual"  # frozen: makes the random bits
_RETURN_KEY = "refused"  # frozen: makes the random bits


class Int8Residual(NamedTuple):
    """A tensor as codes · scales, with one scale per block of 256 elements."""

    codes: Tensor  # int8, in the tensor's shape
    scales: Tensor  # float32, one per block


def check_residual_dtype(part: str, dtype: str) -> None:
    """Raise CompositionError unless residuals can be stored in this dtype."""
    if dtype not in RESIDUAL_DTYPES:
        raise CompositionError(
            f"{part}: residual_dtype must be one of {', '.join(RESIDUAL_DTYPES)}, got {dtype!r}; "
            "bf16 takes half the memory"
        )


def zero_state(spec: TensorSpec) -> Tensor:
    """Zeros in the type of sums, which take no memory on the CPU until they are written to."""
    if spec.device.type == "cpu":
        return zeros(spec.shape, spec.work_dtype)
    return torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)


def zero_residual(spec: TensorSpec, dtype: str) -> Tensor | Int8Residual:
    """Zeros, as `quantize_residual` stores them."""
    return quantize_residual(zero_state(spec), dtype, Key(0))


def quantize_residual(tensor: Tensor, dtype: str, key: Key) -> Tensor | Int8Residual:
    """The tensor in fewer bytes: finite, unbiased over keys, zeros exact. "fp32" returns the tensor itself.

    Rounding is stochastic. A residual grows by small amounts: rounding to nearest would drop whatever is smaller than
    half a step, at every step; stochastic rounding keeps it in expectation.
    """
    if dtype == "fp32":
        return tensor
    single = cast_saturating(tensor, torch.float32)
    return _to_bfloat16(single, key) if dtype == "bf16" else _to_int8(single, key)


def quantize_layer_residual(layer: str, tensor: Tensor, dtype: str, ctx: Context) -> Tensor | Int8Residual:
    """`quantize_residual` with the key of this layer, rank and step, which is derived only where it is needed."""
    if dtype == "fp32":
        return tensor
    return quantize_residual(tensor, dtype, ctx.key(f"{layer}/{_RESIDUAL_KEY}", ctx.world.rank))


def dequantize_residual(residual: Tensor | Int8Residual, spec: TensorSpec) -> Tensor:
    """The stored residual, in the dtype of sums."""
    if isinstance(residual, Tensor):
        return residual if residual.dtype == spec.work_dtype else residual.to(spec.work_dtype)
    blocks = _to_blocks(residual.codes.flatten()) * residual.scales[:, None]
    flat = blocks.flatten()[: spec.numel]
    return saturate(flat).view(spec.shape).to(spec.work_dtype)  # 127 · (max / 127) may round to more than max


def average_residuals(residuals: Sequence[Tensor | Int8Residual], spec: TensorSpec) -> Tensor | Int8Residual:
    """The mean of several ranks' residuals, stored as they are."""
    if isinstance(residuals[0], Int8Residual):
        mean = mean_state([dequantize_residual(residual, spec) for residual in residuals])
        return quantize_residual(mean, "int8", Key(0))
    return mean_state(residuals)  # type: ignore[no-any-return]


class ResidualMemory:
    """Base class of memories that keep a residual, stored as `residual_dtype`, around an aggregator `inner`.

    Their states are named tuples with fields `residual` and `inner`; other fields are averaged when states are merged.
    """

    inner: Aggregator[Any]
    residual_dtype: str

    def hand_over(self, state: Any, spec: TensorSpec) -> list[MemoryItem]:
        """The residual, and what the memories inside hold."""
        residual = dequantize_residual(state.residual, spec)
        unsent = MemoryItem("residual", self, residual, "it was not sent yet and will not be")
        return [unsent, *memory_items(self.inner, state.inner, spec)]

    def adopt(
        self, state: Any, spec: TensorSpec, items: Sequence[MemoryItem], ctx: Context
    ) -> tuple[Any, list[MemoryItem]]:
        """Add all residuals of `items` to the own one; return the new state and what was not used."""
        residuals, rest = split_kind(items, "residual")
        inner, rest = adopt_into(self.inner, state.inner, spec, rest, ctx)
        if not residuals:
            return state._replace(inner=inner), rest
        total = dequantize_residual(state.residual, spec)
        for item in residuals:
            total = saturate(total + item.value)
        residual = quantize_layer_residual(spec.name, total, self.residual_dtype, ctx)
        return state._replace(residual=residual, inner=inner), rest

    def merge(self, states: Sequence[Any], spec: TensorSpec) -> Any:
        """One state for those of several ranks: the mean of each field."""
        fields = {name: [getattr(state, name) for state in states] for name in states[0]._fields}
        residual, inner = average_residuals(fields.pop("residual"), spec), fields.pop("inner")
        others = {name: mean_state(values) for name, values in fields.items()}
        return states[0]._replace(residual=residual, inner=merge_memories(self.inner, inner, spec), **others)

    def give_back(self, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Any:
        """Add a refused message to the residual: the sum of accepted + residual stays the sum of tensors."""
        total = saturate(dequantize_residual(state.residual, spec) + tensor.to(spec.work_dtype))
        key = derive_key(ctx.seed, ctx.step, spec.name, _RETURN_KEY)
        return state._replace(residual=quantize_residual(total, self.residual_dtype, key))

    def send_form(self) -> SendForm:
        """The inner aggregator's, with this memory around it."""
        return send_form_around(self)


def _to_bfloat16(tensor: Tensor, key: Key) -> Tensor:
    """bfloat16 is the upper half of float32: add noise to the lower half and truncate. Unbiased."""
    bits = tensor.contiguous().view(torch.int32)
    magnitude, sign = bits & 0x7FFFFFFF, bits & ~0x7FFFFFFF
    noisy = magnitude + noise16(key, tensor.numel(), tensor.device).view(tensor.shape)
    truncated = noisy.clamp(max=_MAX_FLOAT32_BITS) & _BFLOAT16_MASK  # clamped: a carry could make the largest infinite
    return (truncated | sign).view(torch.float32).to(torch.bfloat16)


def _to_int8(tensor: Tensor, key: Key) -> Int8Residual:
    """16 bits of noise lose what is below 2^-17 of a step; so does float32 beside the block's largest value."""
    blocks = _to_blocks(tensor.flatten())
    scales = (blocks.abs().amax(dim=1) / LEVELS).clamp(min=_MIN_SCALE)
    noise = (noise16(key, blocks.numel(), tensor.device).view_as(blocks) + 0.5) * 2.0**-16
    codes = torch.floor(blocks / scales[:, None] + noise).clamp(-LEVELS, LEVELS).to(torch.int8)
    return Int8Residual(codes.flatten()[: tensor.numel()].clone().view(tensor.shape), scales)


def _to_blocks(flat: Tensor) -> Tensor:
    """(blocks, 256), the last block padded with zeros."""
    return pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
