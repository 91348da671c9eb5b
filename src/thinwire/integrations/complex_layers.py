"""Complex layers travel as pairs of reals: a view with one more dimension of two, of the same memory."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import GradBucket

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


def bucket_gradients(bucket: GradBucket) -> list[Tensor]:
    """A bucket's gradients as views of its buffer, those of complex parameters as pairs of reals.

    DDP gives the hook a real view of a complex buffer, but cuts it by the numbers of complex elements, so that its own
    `bucket.gradients()` are wrong there. Parameters of one bucket have one type.
    """
    parameters = bucket.parameters()
    if not any(parameter.is_complex() for parameter in parameters):
        return bucket.gradients()
    pieces = torch.split(bucket.buffer().view(-1), [2 * parameter.numel() for parameter in parameters])
    return [piece.view(*p.shape, 2) for piece, p in zip(pieces, parameters, strict=True)]


def like(tensor: Tensor, form: Tensor) -> Tensor:
    """What `as_real` made, complex again where `form` is."""
    return torch.view_as_complex(tensor) if form.is_complex() else tensor
