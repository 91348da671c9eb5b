"""Residuals: as they are, in bfloat16, or in bytes with one scale for each block; and what memories do with them."""

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
    Held,
    Key,
    SendForm,
    TensorSpec,
    adopt_into,
    cast_saturating,
    derive_key,
    held_by,
    mean_state,
    merge_memories,
    saturate,
    send_form_around,
    split_kind,
)
from ..kernels import noise16

FORMS = ("fp32", "bf16", "int8")
BLOCK = 256
LEVELS = 127
_SMALLEST = 2.0**-126  # a scale is at least this, so that x / scale stays finite and is exact enough
_LARGEST_BITS = 0x7F7FFFFF  # the largest finite float32
_KEPT_BITS = -0x10000  # of a float32's 32, the 16 that make a bfloat16


class Kept(NamedTuple):
    """A tensor in bytes: codes · scales, one scale for each block of 256."""

    codes: Tensor  # int8, in the tensor's shape
    scales: Tensor  # float32, one a block


def check_form(part: str, form: str) -> None:
    if form not in FORMS:
        raise CompositionError(f"{part}: residual must be one of {', '.join(FORMS)}, got {form!r}; bf16 halves it")


def no_residual(spec: TensorSpec, form: str) -> Tensor | Kept:
    """Zeros, in the form that `keep` would give them."""
    return keep(torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device), form, Key(0))


def keep(tensor: Tensor, form: str, key: Key) -> Tensor | Kept:
    """The tensor in fewer bytes, finite, right in the mean over keys, zeros exact; "fp32" leaves it as it is.

    Rounding is by chance and not to the nearest: a residual grows by little at a time, and what is smaller than half a
    step would be forgotten at every step, for ever. By chance it counts as often as it should.
    """
    if form == "fp32":
        return tensor
    narrowed = cast_saturating(tensor, torch.float32)
    return _in_halves(narrowed, key) if form == "bf16" else _in_bytes(narrowed, key)


def keep_for(layer: str, tensor: Tensor, form: str, ctx: Context) -> Tensor | Kept:
    """`keep` by the layer's own chance on this rank, which is drawn only where it is needed."""
    return tensor if form == "fp32" else keep(tensor, form, ctx.key(f"{layer}/residual", ctx.world.rank))


def recall(kept: Tensor | Kept, spec: TensorSpec) -> Tensor:
    """What was kept, in the type that memories are worked with."""
    if isinstance(kept, Tensor):
        return kept if kept.dtype == spec.work_dtype else kept.to(spec.work_dtype)
    blocks = _blocks(kept.codes.flatten()) * kept.scales[:, None]
    flat = blocks.flatten()[: spec.numel]
    return saturate(flat).view(spec.shape).to(spec.work_dtype)  # 127 · (largest / 127) may round past the largest


class ResidualMemory:
    """The memory protocol of parts that keep a residual, in the form `self.residual`, around an aggregator `inner`.

    Their states are named tuples with fields `residual` and `inner`; other fields are averaged when states are merged.
    """

    inner: Aggregator[Any]
    residual: str

    def hand_over(self, state: Any, spec: TensorSpec) -> list[Held]:
        unsent = Held("residual", self, recall(state.residual, spec), "it was not sent yet and will not be")
        return [unsent, *held_by(self.inner, state.inner, spec)]

    def adopt(self, state: Any, spec: TensorSpec, held: Sequence[Held], ctx: Context) -> tuple[Any, list[Held]]:
        """All residuals of `held` are added to its own."""
        residuals, rest = split_kind(held, "residual")
        inner, rest = adopt_into(self.inner, state.inner, spec, rest, ctx)
        if not residuals:
            return state._replace(inner=inner), rest
        total = recall(state.residual, spec)
        for one in residuals:
            total = saturate(total + one.value)
        return state._replace(residual=keep_for(spec.name, total, self.residual, ctx), inner=inner), rest

    def merge(self, states: Sequence[Any], spec: TensorSpec) -> Any:
        merged = {name: [getattr(state, name) for state in states] for name in states[0]._fields}
        residual, inner = mean_residual(merged.pop("residual"), spec), merged.pop("inner")
        others = {name: mean_state(values) for name, values in merged.items()}
        return states[0]._replace(residual=residual, inner=merge_memories(self.inner, inner, spec), **others)

    def give_back(self, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Any:
        """Then sum of accepted + residual = sum of tensors, as if the refused message had sent nothing."""
        whole = saturate(recall(state.residual, spec) + tensor.to(spec.work_dtype))
        key = derive_key(ctx.seed, ctx.step, spec.name, "refused")
        return state._replace(residual=keep(whole, self.residual, key))

    def send_form(self) -> SendForm:
        return send_form_around(self)


def mean_residual(kept: Sequence[Tensor | Kept], spec: TensorSpec) -> Tensor | Kept:
    """The mean of several ranks' residuals, in their form."""
    if isinstance(kept[0], Kept):
        return keep(mean_state([recall(one, spec) for one in kept]), "int8", Key(0))
    return mean_state(kept)  # type: ignore[no-any-return]


def _in_halves(tensor: Tensor, key: Key) -> Tensor:
    """bfloat16 is the upper half of float32: noise is added to the lower one, which is then cut off. No bias at all."""
    bits = tensor.contiguous().view(torch.int32)
    magnitude, sign = bits & 0x7FFFFFFF, bits & ~0x7FFFFFFF
    noisy = magnitude + noise16(key, tensor.numel(), tensor.device).view(tensor.shape)
    cut = noisy.clamp(max=_LARGEST_BITS) & _KEPT_BITS  # clamped, because a carry could make the largest infinite
    return (cut | sign).view(torch.float32).to(torch.bfloat16)


def _in_bytes(tensor: Tensor, key: Key) -> Kept:
    """Sixteen bits of noise lose what is below 2^-17 of a step: what float32 loses beside the block's largest, too."""
    blocks = _blocks(tensor.flatten())
    scales = (blocks.abs().amax(dim=1) / LEVELS).clamp(min=_SMALLEST)
    noise = (noise16(key, blocks.numel(), tensor.device).view_as(blocks) + 0.5) * 2.0**-16
    codes = torch.floor(blocks / scales[:, None] + noise).clamp(-LEVELS, LEVELS).to(torch.int8)
    return Kept(codes.flatten()[: tensor.numel()].clone().view(tensor.shape), scales)


def _blocks(flat: Tensor) -> Tensor:
    """(blocks, 256), the last one filled up with zeros."""
    return pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
