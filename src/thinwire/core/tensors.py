"""TensorSpec: the shape and type of a layer's tensor; tests and casts that keep numbers finite."""

from __future__ import annotations

import cmath
import math
from dataclasses import dataclass

import torch
from torch import Tensor

CPU = torch.device("cpu")


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape, type and device of a layer's tensor: equal on all ranks, never sent."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> TensorSpec:
        """The spec of this tensor."""
        return cls(name, tuple(tensor.shape), tensor.dtype, tensor.device)

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """The size of the dense tensor in bytes."""
        return self.numel * self.dtype.itemsize

    @property
    def work_dtype(self) -> torch.dtype:
        """The type of sums and residuals: half precision is too short for them."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32


def all_finite(tensor: Tensor) -> bool:
    """Whether no element is NaN or infinite. A finite sum proves it in one fast pass; else each element is tested."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return cmath.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())


def saturate(tensor: Tensor) -> Tensor:
    """Replace infinities by the largest finite numbers and NaN by 0, so that none enters a state."""
    return tensor if all_finite(tensor) else tensor.nan_to_num(nan=0.0)


def cast_saturating(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to a type; numbers beyond its range become its largest finite numbers, never infinite."""
    if tensor.dtype == dtype:
        return tensor
    if not dtype.is_floating_point:
        return tensor.to(dtype)
    limit = torch.finfo(dtype).max
    if torch.finfo(tensor.dtype).max > limit:
        wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # bf16 would round the limit up
        tensor = wide.clamp(-limit, limit)
    return tensor.to(dtype)
