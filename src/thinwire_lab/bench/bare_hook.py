"""A bare DDP hook with error feedback and top-k: thinwire's kernels for each bucket, and nothing else of the library.

It is the yardstick of `thinwire bench ddp`: a step with `ef(topk)` minus a step with this hook is what the library
costs. It does no checks, keeps no pending state and has no bad-step flag. It compresses a bucket as one vector, where
thinwire compresses each layer and sends small ones dense, so it sends somewhat fewer bytes.

DDP reads the annotations of a hook, so this module must not import annotations from __future__.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket

from thinwire.kernels import packed_bytes, sparse_mean, take_largest
from thinwire.kernels.positions import first_parameter, width_of

BucketFuture = torch.futures.Future[Tensor]
_LENGTH_BYTES = 8  # each message begins with the length of its coded positions
_HEAD_BYTES = 10  # of coded positions: the coding, and a count


def count_position_bytes(count: int, numel: int) -> int:
    """The largest number of bytes that `take_largest` needs for the positions of `count` of `numel` elements."""
    r = first_parameter(count, numel)
    rice = packed_bytes(count, r) + packed_bytes(count + (numel >> r), 1)
    return _HEAD_BYTES + min(rice, packed_bytes(numel, 1), packed_bytes(count, width_of(numel)))


@dataclass
class BucketState:
    """Residual and messages of one bucket. Messages have the same length on all ranks, so none is announced."""

    numel: int
    count: int
    messages: list[Tensor]  # by rank
    residual: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.residual = torch.zeros(self.numel)

    def encode(self, gradients: Tensor, rank: int) -> Tensor:
        """Add the residual, take the largest values out and write them and their positions to this rank's message."""
        taken = take_largest(gradients, self.residual, self.count)
        self.residual = taken.rest
        message, coded, end = self.messages[rank], taken.coded.data, _LENGTH_BYTES + taken.kept.nbytes
        message[:_LENGTH_BYTES].view(torch.int64).fill_(coded.numel())
        message[_LENGTH_BYTES:end].view(torch.float32).copy_(taken.kept)
        message[end : end + coded.numel()].copy_(coded)
        return message

    def decode(self, gradients: Tensor) -> None:
        """Overwrite the gradients with the mean of all ranks' messages."""
        end = _LENGTH_BYTES + 4 * self.count
        values = [message[_LENGTH_BYTES:end].view(torch.float32) for message in self.messages]
        lengths = [int(message[:_LENGTH_BYTES].view(torch.int64)) for message in self.messages]
        coded = [message[end : end + length] for message, length in zip(self.messages, lengths, strict=True)]
        sparse_mean(gradients, values, coded, self.numel)


class BareHook:
    """Encode in the hook, send to all peers at once, decode in a thread of its own when their messages are there.

    Args:
        density: fraction of each bucket's elements that is sent.
        group: a gloo group; None makes a new one of all ranks.
    """

    def __init__(self, density: float, group: dist.ProcessGroup | None = None) -> None:
        self.density = density
        self.group: Any = group or dist.new_group(backend="gloo")
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self._buckets: dict[int, BucketState] = {}
        self._thread = ThreadPoolExecutor(1, "bare-hook")

    def hook(self, bucket: GradBucket) -> BucketFuture:
        """DDP's communication hook."""
        future: BucketFuture = torch.futures.Future()
        gradients, index = bucket.buffer(), bucket.index()
        state = self._state_of(index, gradients.numel())
        message = state.encode(gradients, self.rank)
        peers = [rank for rank in range(self.size) if rank != self.rank]
        works = [self.group.recv([state.messages[peer]], peer, index) for peer in peers]
        works += [self.group.send([message], peer, index) for peer in peers]
        self._thread.submit(_finish_bucket, works, state, gradients, future)
        return future

    def _state_of(self, index: int, numel: int) -> BucketState:
        state = self._buckets.get(index)
        if state is None or state.numel != numel:  # DDP rebuilds its buckets after the first step
            count = max(1, round(self.density * numel))
            num_bytes = _LENGTH_BYTES + 4 * count + count_position_bytes(count, numel)
            messages = [torch.zeros(num_bytes, dtype=torch.uint8) for _ in range(self.size)]
            state = self._buckets[index] = BucketState(numel, count, messages)
        return state


def _finish_bucket(works: list[Any], state: BucketState, gradients: Tensor, future: BucketFuture) -> None:
    try:
        for work in works:
            work.wait()
        state.decode(gradients)
        future.set_result(gradients)
    except BaseException as error:
        future.set_exception(error)  # type: ignore[arg-type]
