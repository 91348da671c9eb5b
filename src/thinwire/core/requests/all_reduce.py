"""AllReduce: every rank receives the sum, maximum or bitwise OR of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from ..errors import DecodeError
from ..payloads import Payload
from .base import Addend, GatheredPayloads, Label, Request, World, all_labels, type_names

_GROUP_BYTES = 1 << 17


class Op(str, Enum):
    """The operation of a reduction."""

    SUM = "sum"
    MAX = "max"
    OR = "or"  # bitwise: integers only, bitmaps are sent as uint8


@dataclass(frozen=True, eq=False)
class AllReduce(Request):
    """Answered with the reduction of all ranks' tensors, of the same shape.

    out: a tensor of that form with memory of its own, to which a driver may write the answer; it saves a copy. It is
    not sent or compared. After an error its contents are undefined.
    """

    tensor: Tensor
    op: Op = Op.SUM
    labels: tuple[Label, ...] = ()
    step: int = 0
    out: Tensor | None = None

    flag_order = 2

    def __post_init__(self) -> None:
        check_op(self.tensor, self.op)
        if self.out is not None and (self.out.shape, self.out.dtype) != (self.tensor.shape, self.tensor.dtype):
            raise ValueError(
                f"AllReduce: out must be {tuple(self.tensor.shape)} {self.tensor.dtype} as the tensor, got "
                f"{tuple(self.out.shape)} {self.out.dtype}"
            )

    def describe_form(self) -> str:
        numbers = f"{self.tensor.numel()} {type_names((self.tensor.dtype,))}"
        return f"AllReduce({self.op.value}) of {numbers}, {self.tensor.nbytes} B"

    def wire_bytes(self, world: World, sizes: Sequence[int] | None = None) -> tuple[int, int]:
        """Those of a reduce-scatter and an all-gather, 2 (n - 1) / n times the tensor, by ring or directly."""
        rank, size = world
        own = self.tensor.nbytes
        mine = shard_sizes(self.tensor.numel(), size)[rank] * self.tensor.element_size()
        return (own - mine) + (size - 1) * mine, (size - 1) * mine + (own - mine)

    def merge_key(self) -> tuple[str, ...]:
        return ("AllReduce", str(self.tensor.dtype), str(self.tensor.device), self.op.value)

    def merge(self, batch: Sequence[AllReduce]) -> AllReduce:
        tensors = [request.tensor.flatten() for request in batch]
        whole = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        return replace(self, tensor=whole, labels=all_labels(batch), out=None)

    def split(self, batch: Sequence[AllReduce], answer: Tensor) -> list[Tensor]:
        pieces = torch.split(answer, [request.tensor.numel() for request in batch])
        return [piece.view(request.tensor.shape) for piece, request in zip(pieces, batch, strict=True)]

    def group_payload(self) -> Payload | None:
        short = self.tensor.nbytes < _GROUP_BYTES  # a longer one would be copied once more for the common message
        return Payload((self.tensor.detach().to("cpu").contiguous().flatten(),)) if short else None

    def group_tail(self) -> Addend | None:
        return Addend(self.tensor, self.out) if self.op is Op.SUM and self.tensor.nbytes >= _GROUP_BYTES else None

    def answer_group(self, payloads: GatheredPayloads) -> Tensor:
        parts = [payload.parts[0] for payload in payloads]
        for rank, part in enumerate(parts):
            if part.numel() != self.tensor.numel():
                raise DecodeError(
                    f"step {self.step}: rank {rank} sent {part.numel()} numbers for {self.describe()}, expected "
                    f"{self.tensor.numel()}"
                )
        return combine(parts, self.op).view(self.tensor.shape).to(self.tensor.device)

    def make_flag(self, flag: bool, batch: Sequence[Request]) -> AllReduce | None:
        if self.op is not Op.OR and not self.tensor.is_floating_point():
            return None  # bytes would wrap around in a sum of 256 ranks
        if self.tensor.nbytes >= _GROUP_BYTES:
            return None  # the tensor would be copied to get one more element
        part = torch.tensor([flag], dtype=self.tensor.dtype, device=self.tensor.device)
        return AllReduce(part, self.op, (Label("", "flag", part.nbytes, 1.0),))

    def read_flag(self, answer: Tensor, flag: bool) -> tuple[bool, frozenset[int]]:
        return bool((answer != 0).any()), frozenset()

    def answer_alone(self) -> Tensor:
        return self.tensor.clone()

    def answer_if_identical(self, size: int) -> Tensor:
        return self.tensor * size if self.op is Op.SUM else self.tensor.clone()

    def answer_all(self, requests: Sequence[AllReduce]) -> list[Any]:
        total = combine([request.tensor for request in requests], self.op)
        return [total.clone() for _ in requests]


def flag_alone(flag: bool) -> AllReduce:
    """The bad-step flag as a request of its own, where no other request of the round can carry it."""
    return AllReduce(torch.tensor([flag], dtype=torch.uint8), Op.MAX, (Label("", "flag", 1, 1.0),))


def check_op(tensor: Tensor, op: Op) -> None:
    """Raise TypeError if the operation does not support the type of the tensor."""
    if op is Op.OR and (tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError(f"AllReduce(or): the tensor must be an integer type, got {tensor.dtype}; use uint8")


def combine(tensors: Sequence[Tensor], op: Op) -> Tensor:
    """Sum, maximum or bitwise OR in rank order: the same bits wherever it is computed."""
    if op is Op.SUM and len(tensors) == 2:
        return torch.add(*tensors)  # one pass instead of two, the same bits
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        if op is Op.SUM:
            total += tensor
        elif op is Op.OR:
            total |= tensor
        else:
            torch.maximum(total, tensor, out=total)
    return total


def shard_sizes(numel: int, size: int) -> list[int]:
    """Lengths of the shards of `numel` elements, one per rank; the first may be one element longer."""
    return [numel // size + (rank < numel % size) for rank in range(size)]


def all_reduce_bytes(num_bytes: float, size: int) -> float:
    """The bytes that one rank sends for an all-reduce of `num_bytes` between `size` ranks."""
    return 2 * (size - 1) / size * num_bytes
