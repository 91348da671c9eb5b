"""Payload: the tensors that are sent for a layer, or for many layers at once.

A payload of many small parts is a table of addresses and lengths, which C reads in one call; its parts become tensors
only where something asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

Integers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


class Part(NamedTuple):
    """One tensor of a payload with labels for the meter, which are not sent: kind, and size by a paper's formula."""

    kind: str
    tensor: Tensor
    model_bits: float


class PartTable(NamedTuple):
    """Where the parts of a payload are in memory, and how many bytes each has."""

    addresses: Integers
    lengths: Integers


class Payload:
    """The tensors that are sent. `kinds` and `model_bits` label them for the meter; a received payload has none."""

    def __init__(
        self, parts: Sequence[Tensor], kinds: tuple[str, ...] = (), model_bits: tuple[float, ...] = ()
    ) -> None:
        self._parts: tuple[Tensor, ...] | None = tuple(parts)
        self.kinds, self.model_bits = kinds, model_bits

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Payload:
        """A payload of labeled parts."""
        kinds, tensors, bits = tuple(zip(*parts, strict=True)) or ((), (), ())
        return Payload(tensors, kinds, bits)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The tensors."""
        if self._parts is None:
            self._parts = self._make_parts()
        return self._parts

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The types of the parts."""
        return tuple([part.dtype for part in self.parts])

    @property
    def num_parts(self) -> int:
        """The number of parts."""
        return len(self.parts)

    @cached_property  # read by framing, headers and the meter
    def num_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(self.part_bytes())

    def part_bytes(self) -> list[int]:
        """Bytes of each part."""
        return [part.nbytes for part in self.parts]

    @property
    def is_contiguous(self) -> bool:
        """Whether every part lies in the memory of the CPU without gaps, so that `table` describes it."""
        return all(part.is_cpu and part.is_contiguous() for part in self.parts)

    def table(self) -> PartTable:
        """Addresses and lengths of the parts, which must be contiguous; valid as long as this payload exists."""
        return PartTable(_integers([part.data_ptr() for part in self.parts]), _integers(self.part_bytes()))

    def labeled(self, kinds: tuple[str, ...], model_bits: tuple[float, ...]) -> Payload:
        """The same parts with labels."""
        return Payload(self.parts, kinds, model_bits)

    def unlabeled(self) -> Payload:
        """The same parts without labels, as a receiver has them."""
        return Payload(self.parts)

    def cut(self, counts: Sequence[int]) -> list[Payload]:
        """The inverse of `join`: payloads with these numbers of parts."""
        ends = accumulate(counts)
        return [Payload(self.parts[end - count : end]) for count, end in zip(counts, ends, strict=True)]

    def labeled_parts(self) -> tuple[Part, ...]:
        """The parts with their labels; by default kind "values" and their size in bits."""
        kinds, bits = self._labels()
        return tuple(map(Part, kinds, self.parts, bits))

    def prepend(self, first: Part) -> Payload:
        """The same payload with one more part before the others."""
        kinds, bits = self._labels()
        return Payload((first.tensor, *self.parts), (first.kind, *kinds), (first.model_bits, *bits))

    def to(self, device: torch.device) -> Payload:
        """The payload on this device, without labels if it was copied."""
        return self if {p.device for p in self.parts} <= {device} else Payload(tuple(p.to(device) for p in self.parts))

    def _labels(self) -> tuple[tuple[str, ...], tuple[float, ...]]:
        kinds = self.kinds or ("values",) * self.num_parts
        return kinds, self.model_bits or tuple([8.0 * num_bytes for num_bytes in self.part_bytes()])

    def _make_parts(self) -> tuple[Tensor, ...]:
        raise NotImplementedError


class PackedPayload(Payload):
    """Parts that lie in one buffer of bytes.

    Args:
        buffer: the bytes.
        starts, lengths: of the parts, in bytes.
        dtypes: of the parts.
    """

    def __init__(
        self,
        buffer: Tensor,
        starts: Integers,
        lengths: Integers,
        dtypes: tuple[torch.dtype, ...],
        kinds: tuple[str, ...] = (),
        model_bits: tuple[float, ...] = (),
    ) -> None:
        self._parts, self.kinds, self.model_bits = None, kinds, model_bits
        self._buffer, self._starts, self._lengths, self._dtypes = buffer, starts, lengths, dtypes

    dtypes = property(lambda self: self._dtypes)
    num_parts = property(lambda self: len(self._dtypes))
    is_contiguous = property(lambda self: True)

    def part_bytes(self) -> list[int]:
        return self._lengths.tolist()  # type: ignore[no-any-return]

    def table(self) -> PartTable:
        return PartTable(self._starts + self._buffer.data_ptr(), self._lengths)

    def labeled(self, kinds: tuple[str, ...], model_bits: tuple[float, ...]) -> Payload:
        return PackedPayload(self._buffer, self._starts, self._lengths, self._dtypes, kinds, model_bits)

    def unlabeled(self) -> Payload:
        return self.labeled((), ())

    def cut(self, counts: Sequence[int]) -> list[Payload]:
        ends = list(accumulate(counts))
        slices = [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
        return [PackedPayload(self._buffer, self._starts[s], self._lengths[s], self._dtypes[s]) for s in slices]

    def _make_parts(self) -> tuple[Tensor, ...]:
        rows = zip(self._starts.tolist(), self._lengths.tolist(), self._dtypes, strict=True)
        return tuple([_view(self._buffer[start : start + length], dtype) for start, length, dtype in rows])


class JoinedPayload(Payload):
    """The parts of several payloads, one after another."""

    def __init__(self, members: Sequence[Payload]) -> None:
        self._parts, self.kinds, self.model_bits = None, (), ()
        self._members = list(members)

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return tuple([dtype for member in self._members for dtype in member.dtypes])

    num_parts = property(lambda self: sum([member.num_parts for member in self._members]))
    is_contiguous = property(lambda self: all(member.is_contiguous for member in self._members))

    def part_bytes(self) -> list[int]:
        return [num_bytes for member in self._members for num_bytes in member.part_bytes()]

    def table(self) -> PartTable:
        return PartTable(*map(np.concatenate, zip(*[member.table() for member in self._members], strict=True)))

    def unlabeled(self) -> Payload:
        return JoinedPayload([member.unlabeled() for member in self._members])

    def cut(self, counts: Sequence[int]) -> list[Payload]:
        is_inverse = list(counts) == [member.num_parts for member in self._members]
        return [member.unlabeled() for member in self._members] if is_inverse else super().cut(counts)

    def _make_parts(self) -> tuple[Tensor, ...]:
        return tuple([part for member in self._members for part in member.parts])


def join(payloads: Sequence[Payload]) -> Payload:
    """One payload with the parts of several."""
    if all(payload._parts is not None for payload in payloads):
        return Payload([part for payload in payloads for part in payload.parts])
    return JoinedPayload(payloads)


def _integers(values: Sequence[int]) -> Integers:
    return np.array(values, dtype=np.int64)


def _view(data: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as a vector of this type; copied if they are not aligned."""
    if dtype == torch.uint8:
        return data
    return (data if data.storage_offset() % dtype.itemsize == 0 else data.clone()).view(dtype)
