"""TensorSpec: the shape and type of a layer's tensor. Payload: the tensors that are sent for it."""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

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


class Part(NamedTuple):
    """One tensor of a payload with labels for the meter, which are not sent: kind, and size by a paper's formula."""

    kind: str
    tensor: Tensor
    model_bits: float


@dataclass(frozen=True, eq=False)
class Payload:
    """The tensors that are sent. `kinds` and `model_bits` label them for the meter; a received payload has none."""

    parts: tuple[Tensor, ...]
    kinds: tuple[str, ...] = ()
    model_bits: tuple[float, ...] = ()

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Payload:
        """A payload of labeled parts."""
        kinds, tensors, bits = tuple(zip(*parts, strict=True)) or ((), (), ())
        return cls(tensors, kinds, bits)

    def labeled_parts(self) -> tuple[Part, ...]:
        """The parts with their labels; by default kind "values" and their size in bits."""
        kinds, bits = self._labels()
        return tuple(map(Part, kinds, self.parts, bits))

    def prepend(self, first: Part) -> Payload:
        """The same payload with one more part before the others."""
        kinds, bits = self._labels()
        return Payload((first.tensor, *self.parts), (first.kind, *kinds), (first.model_bits, *bits))

    def _labels(self) -> tuple[tuple[str, ...], tuple[float, ...]]:
        kinds = self.kinds or ("values",) * len(self.parts)
        return kinds, self.model_bits or tuple([8.0 * part.nbytes for part in self.parts])

    def to(self, device: torch.device) -> Payload:
        """The payload on this device, without labels if it was copied."""
        return self if {p.device for p in self.parts} <= {device} else Payload(tuple(p.to(device) for p in self.parts))

    @cached_property  # read by framing, headers and the meter
    def num_bytes(self) -> int:
        """Bytes of all parts."""
        return sum([part.nbytes for part in self.parts])


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
