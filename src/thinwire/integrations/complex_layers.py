"""Complex layers are sent as pairs of reals: a real view of the same memory with a last dimension of two."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import GradBucket

from ..core import TensorSpec

AS_PAIRS = "complex, sent as pairs of reals"


def as_real(tensor: Tensor) -> Tensor:
    """Return the tensor, or the real view (*shape, 2) of a complex one."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def as_real_spec(spec: TensorSpec) -> TensorSpec:
    """Return the spec of `as_real(tensor)`."""
    if not spec.dtype.is_complex:
        return spec
    return TensorSpec(spec.name, (*spec.shape, 2), spec.dtype.to_real(), spec.device)


def bucket_gradients(bucket: GradBucket) -> list[Tensor]:
    """Return a bucket's gradients as views of its buffer, those of complex parameters as pairs of reals.

    DDP passes a real view of a complex buffer to the hook but splits it by the numbers of complex elements, so
    `bucket.gradients()` is wrong there. All parameters of a bucket have one dtype.
    """
    parameters = bucket.parameters()
    if not any(parameter.is_complex() for parameter in parameters):
        return bucket.gradients()
    pieces = torch.split(bucket.buffer().view(-1), [2 * parameter.numel() for parameter in parameters])
    return [piece.view(*p.shape, 2) for piece, p in zip(pieces, parameters, strict=True)]


def restore_complex(tensor: Tensor, form: Tensor) -> Tensor:
    """Undo `as_real` for a tensor of the dtype of `form`."""
    return torch.view_as_complex(tensor) if form.is_complex() else tensor
