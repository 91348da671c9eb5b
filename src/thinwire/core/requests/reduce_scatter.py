"""ReduceScatter: every rank receives the reduction of its shard over all ranks. Half of an all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .all_reduce import Op, check_op, combine
from .base import Label, Request, World, all_labels, type_names


@dataclass(frozen=True, eq=False)
class ReduceScatter(Request):
    """Answered with the reduction, in rank order, of all ranks' shards for this rank.

    Args:
        shards: shards[r] belongs to rank r. Lengths may differ between shards, not between ranks.
        rank: this rank.
        op: sum, maximum or bitwise OR.
    """

    shards: tuple[Tensor, ...]
    rank: int
    op: Op = Op.SUM
    labels: tuple[Label, ...] = ()
    step: int = 0

    def __post_init__(self) -> None:
        for shard in self.shards:
            check_op(shard, self.op)

    def describe_form(self) -> str:
        lengths = [shard.numel() for shard in self.shards]
        text = str(lengths[0]) if len(set(lengths)) == 1 else ", ".join(map(str, lengths))
        return f"ReduceScatter({self.op.value}) of {text} {type_names((self.shards[0].dtype,))} for each rank"

    def wire_bytes(self, world: World, sizes: Sequence[int] | None = None) -> tuple[int, int]:
        own, mine = sum(tensor.nbytes for tensor in self.shards), self.shards[world.rank].nbytes
        return own - mine, (world.size - 1) * mine

    def merge_key(self) -> tuple[str, ...]:
        first = self.shards[0]
        return ("ReduceScatter", str(first.dtype), str(first.device), self.op.value)

    def merge(self, batch: Sequence[ReduceScatter]) -> ReduceScatter:
        by_rank = zip(*[request.shards for request in batch], strict=True)
        shards = tuple(torch.cat([shard.flatten() for shard in shards]) for shards in by_rank)
        return replace(self, shards=shards, labels=all_labels(batch))

    def split(self, batch: Sequence[ReduceScatter], answer: Tensor) -> list[Tensor]:
        own = [request.shards[self.rank] for request in batch]
        pieces = torch.split(answer, [shard.numel() for shard in own])
        return [piece.view(shard.shape) for piece, shard in zip(pieces, own, strict=True)]

    def answer_alone(self) -> Tensor:
        return self.shards[0].clone()

    def answer_if_identical(self, size: int) -> Tensor:
        own = self.shards[self.rank]
        return own * size if self.op is Op.SUM else own.clone()

    def answer_all(self, requests: Sequence[ReduceScatter]) -> list[Tensor]:
        return [combine([other.shards[rank] for other in requests], self.op) for rank in range(len(requests))]
