"""Residuals in fewer bytes: as they are, in bfloat16, or in bytes with one scale for each block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core import CompositionError, Context, Held, Key, TensorSpec, mean_state, narrow, saturate, split_kind
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
    narrowed = narrow(tensor, torch.float32)
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


def unsent(part: Any, kept: Tensor | Kept, spec: TensorSpec) -> Held:
    """A residual, as a memory hands it over."""
    return Held("residual", part, recall(kept, spec), "it was not sent yet and will not be")


def add_residuals(
    kept: Tensor | Kept, form: str, spec: TensorSpec, held: Sequence[Held], ctx: Context
) -> tuple[Tensor | Kept, list[Held]]:
    """What is kept with all residuals of `held` added, in this form; and the rest of `held`."""
    residuals, rest = split_kind(held, "residual")
    if not residuals:
        return kept, rest
    total = recall(kept, spec)
    for one in residuals:
        total = saturate(total + one.value)
    return keep_for(spec.name, total, form, ctx), rest


def mean_memory(states: Sequence[Any], spec: TensorSpec) -> Any:
    """One memory for those of several ranks: the mean, of residuals in bytes, too."""

    def as_tensor(state: Any) -> Any:
        return (recall(state, spec), lambda mean: keep(mean, "int8", Key(0))) if isinstance(state, Kept) else None

    return mean_state(states, as_tensor)


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
