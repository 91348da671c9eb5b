"""Complex layers travel as pairs of reals: a view with one more dimension of two, of the same memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import TensorSpec

AS_PAIRS = "complex, sent as pairs of reals"


def as_real(tensor: Tensor) -> Tensor:
    """The tensor, or of a complex one (*shape, 2) real numbers that share its memory."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def as_real_spec(spec: TensorSpec) -> TensorSpec:
    """The form of `as_real(tensor)`."""
    if not spec.dtype.is_complex:
        return spec
    return TensorSpec(spec.name, (*spec.shape, 2), spec.dtype.to_real(), spec.device)


def like(tensor: Tensor, form: Tensor) -> Tensor:
    """What `as_real` made, complex again where `form` is."""
    return torch.view_as_complex(tensor) if form.is_complex() else tensor
