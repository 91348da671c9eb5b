"""What is sent: the agreed form of a tensor, and the bytes that stand for it on the wire."""

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
    """Form of a layer's tensor: agreed by all ranks in advance, never sent."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> TensorSpec:
        return cls(name, tuple(tensor.shape), tensor.dtype, tensor.device)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Of the dense tensor."""
        return self.numel * self.dtype.itemsize

    @property
    def work_dtype(self) -> torch.dtype:
        """The type sums and memories are kept in: half precision is too short for them."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32


class Part(NamedTuple):
    """One part of a payload with its sender's remarks, which the meter reads and nobody sends."""

    kind: str
    tensor: Tensor
    model_bits: float


@dataclass(frozen=True, eq=False)
class Payload:
    """Exactly what is sent. `kinds` and `model_bits` stay with the sender; a received payload has none."""

    parts: tuple[Tensor, ...]
    kinds: tuple[str, ...] = ()
    model_bits: tuple[float, ...] = ()

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Payload:
        kinds, tensors, bits = tuple(zip(*parts, strict=True)) or ((), (), ())
        return cls(tensors, kinds, bits)

    def remarks(self) -> tuple[Part, ...]:
        """The parts with their remarks, or with honest defaults where there are none."""
        kinds, bits = self._remarked()
        return tuple(map(Part, kinds, self.parts, bits))

    def behind(self, first: Part) -> Payload:
        """The same parts and remarks, behind one more."""
        kinds, bits = self._remarked()
        return Payload((first.tensor, *self.parts), (first.kind, *kinds), (first.model_bits, *bits))

    def _remarked(self) -> tuple[tuple[str, ...], tuple[float, ...]]:
        kinds = self.kinds or ("values",) * len(self.parts)
        return kinds, self.model_bits or tuple([8.0 * part.nbytes for part in self.parts])

    def to(self, device: torch.device) -> Payload:
        return self if {p.device for p in self.parts} <= {device} else Payload(tuple(p.to(device) for p in self.parts))

    @cached_property  # asked by framing, headers and the meter
    def nbytes(self) -> int:
        return sum([part.nbytes for part in self.parts])


def nbytes_of(tensor: Tensor) -> int:
    return tensor.nbytes


def all_finite(tensor: Tensor) -> bool:
    """True if no element is NaN or infinite. A finite sum proves it in one fast pass; else every element is read."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return cmath.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())


def saturate(tensor: Tensor) -> Tensor:
    """What overflowed becomes the largest number, so that no infinity enters a memory. Usually just one reading."""
    return tensor if all_finite(tensor) else tensor.nan_to_num(nan=0.0)


def narrow(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert; what the new type cannot hold becomes its largest number, never infinity."""
    if tensor.dtype == dtype:
        return tensor
    if not dtype.is_floating_point:
        return tensor.to(dtype)
    limit = torch.finfo(dtype).max
    if torch.finfo(tensor.dtype).max > limit:
        wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # bf16 would round the limit up
        tensor = wide.clamp(-limit, limit)
    return tensor.to(dtype)
