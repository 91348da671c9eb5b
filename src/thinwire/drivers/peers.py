"""Byte transfers between the ranks of a group over gloo's point-to-point messages, with counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore

from ..core import PeerLostError, Request, World
from ..core.logs import set_log_rank
from ..core.torch_private import default_store

_Started: TypeAlias = tuple[int, Any]  # the other rank, and the work to wait for
RING_BYTES = 1 << 17  # shorter messages are sent to all directly: the hops of a ring would cost more than they save
_GLOO_SENDER, _GLOO_RECEIVER = 96, 48  # bytes of gloo's own that each side of a message sends

_DISCONNECT_TAG = 1  # all other messages have tag 0

_num_groups: Counter[tuple[int, ...]] = Counter()  # groups made so far for the same ranks


def _new_gloo_group(ranks: tuple[int, ...], world: World, timeout: timedelta) -> Any:
    """A gloo group of its own for these ranks of the job; other ranks take no part.

    `dist.new_group` must be called by every process of the job, or names groups by a counter that differs between
    processes.
    """
    _num_groups[ranks] += 1
    name = f"thinwire/{'-'.join(map(str, ranks))}/{_num_groups[ranks]}"
    store = PrefixStore(name, default_store(dist.distributed_c10d))
    return dist.ProcessGroupGloo(store, world.rank, world.size, timeout)


class Peers:
    """The connections of one rank to the other ranks of its group.

    Attributes:
        sent, received: bytes of data handed to gloo and received from it.
        messages: number of messages sent and received; `gloo_bytes` gives the bytes that gloo adds to them.

    Args:
        group: the process group; None is the default group.
        timeout_s: seconds to wait for a peer.
        ranks: only these ranks of the group take part, numbered in this order; None: all.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float, ranks: Sequence[int] | None = None) -> None:
        self.timeout = timedelta(seconds=timeout_s)
        global_ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        chosen = range(len(global_ranks)) if ranks is None else ranks
        self.world = World(list(chosen).index(dist.get_rank(group)), len(chosen))
        if self.world.size > 1:
            set_log_rank(self.world.rank)
        self.gloo = _new_gloo_group(tuple(global_ranks[rank] for rank in chosen), self.world, self.timeout)
        rank, size = self.world
        self._others = [(rank + distance) % size for distance in range(1, size)]  # in the order of sending
        self.sent = self.received = 0
        self.messages = [0, 0]  # sent, received

    def gloo_bytes(self) -> tuple[int, int]:
        """Bytes that gloo has sent and received so far in addition to the data."""
        sent, received = self.messages
        return _GLOO_SENDER * sent + _GLOO_RECEIVER * received, _GLOO_SENDER * received + _GLOO_RECEIVER * sent

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.gloo.barrier().wait(self.timeout)

    def all_gather_bytes(self, own: Tensor, sizes: Sequence[int], request: Request) -> list[Tensor]:
        """All-gather: the bytes of every rank, in rank order; `sizes` are their lengths.

        Long messages go around a ring, up to the length of the shortest: with one sender per receiver, flows do not
        compete and a thin link is filled. The rest is sent directly. Each rank sends the same number of bytes either
        way.
        """
        rank, size = self.world
        blobs = [own if r == rank else torch.empty(sizes[r], dtype=torch.uint8) for r in range(size)]
        common = min(sizes) if size > 2 and min(sizes) >= RING_BYTES else 0
        works = self._start([own[common:]] * size, [blob[common:] for blob in blobs])
        if common:
            works += self._ring_all_gather([blob[:common] for blob in blobs], request)
        self._finish(works, request)
        return blobs

    def all_to_all_bytes(self, outgoing: Sequence[Tensor], sizes: Sequence[int], request: Request) -> list[Tensor]:
        """All-to-all: send outgoing[r] to each rank r and receive sizes[r] bytes from it, all at once."""
        incoming = [torch.empty(nbytes, dtype=torch.uint8) for nbytes in sizes]
        incoming[self.world.rank] = outgoing[self.world.rank]
        self._finish(self._start(outgoing, incoming), request)
        return incoming

    def _start(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> list[_Started]:
        works = [(r, self.receive(incoming[r], r)) for r in reversed(self._others) if incoming[r].numel()]
        return works + [(r, self.send(outgoing[r], r)) for r in self._others if outgoing[r].numel()]

    def _ring_all_gather(self, blobs: Sequence[Tensor], request: Request) -> list[_Started]:
        """Each rank forwards to its successor what its predecessor sent, until all ranks have all blobs."""
        rank, size = self.world
        before, after = (rank - 1) % size, (rank + 1) % size
        order = [blobs[(rank - hop) % size] for hop in range(size)]
        receiving = [self.receive(blob, before) for blob in order[1:]]  # all posted now: gloo's senders wait for it
        sending = [self.send(order[0], after)]
        for received, blob in zip(receiving[:-1], order[1:-1], strict=True):  # the last one need not be forwarded
            self.wait(received, before, request)
            sending.append(self.send(blob, after))
        return [(before, receiving[-1]), *((after, work) for work in sending)]

    def _finish(self, works: Sequence[_Started], request: Request) -> None:
        for peer, work in works:
            self.wait(work, peer, request)

    def send(self, data: Tensor, to: int) -> Any:
        """Start sending bytes to a rank; returns gloo's work object."""
        self.sent += data.numel()
        self.messages[0] += 1
        return self.gloo.send([data], to, 0)

    def receive(self, into: Tensor, source: int) -> Any:
        """Start receiving bytes from a rank into a tensor; returns gloo's work object."""
        self.received += into.numel()
        self.messages[1] += 1
        return self.gloo.recv([into], source, 0)

    def disconnect(self) -> None:
        """Make every wait for a peer fail at once, from any thread; nothing can be sent or received afterwards.

        gloo closes all connections of a group when one of its waits times out (its `abort` does not end waits). So
        this waits for a message that no rank sends. If a peer has closed its connection already, the wait ends at once
        without that effect, and the next peer is tried.
        """
        for peer in range(self.world.size):
            if peer != self.world.rank:
                with suppress(RuntimeError):
                    work = self.gloo.recv([torch.empty(1, dtype=torch.uint8)], peer, _DISCONNECT_TAG)
                    work.wait(timedelta(milliseconds=1))

    def wait(self, work: dist.Work, peer: int | None, request: Request) -> None:
        """Wait for a send or receive; PeerLostError names the rank that did not answer."""
        try:
            work.wait(self.timeout)
        except RuntimeError as error:
            subject = "another rank" if peer is None else f"rank {peer}"
            event = "did not answer" if "imed out" in str(error) else "closed the connection"
            raise PeerLostError(
                f"step {request.step}: {subject} {event} (timeout_s={self.timeout.total_seconds():g}) while rank "
                f"{self.world.rank} waited in {request.describe()[:200]}; see the log of that rank"
            ) from error
