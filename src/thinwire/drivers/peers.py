"""Bytes between the ranks of a group, through gloo's point-to-point messages; what is sent is counted here."""

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
from ..core.torch_private import default_store

_Started: TypeAlias = tuple[int, Any]  # the other rank, and the work to wait for
RING_BYTES = 1 << 17  # shorter messages are sent to all at once: a ring's hops would cost more time than they save
_GLOO_SENDER, _GLOO_RECEIVER = 96, 48  # bytes of gloo's own that each side of a message sends

_HANG_UP_TAG = 1  # all messages have 0

_made: Counter[tuple[int, ...]] = Counter()  # drivers made so far among the same ranks


def _own_group(ranks: tuple[int, ...], world: World, timeout: timedelta) -> Any:
    """Connections that nobody else uses, among these ranks of the job; no other rank need take part.

    `dist.new_group` would need every process of the job, or names groups by how many a process has, which differs.
    """
    _made[ranks] += 1
    name = f"thinwire/{'-'.join(map(str, ranks))}/{_made[ranks]}"
    store = PrefixStore(name, default_store(dist.distributed_c10d))
    return dist.ProcessGroupGloo(store, world.rank, world.size, timeout)


class Peers:
    """One rank's connections to the others of its group.

    sent, received: bytes handed over and got so far. messages: how many were sent and received; gloo puts bytes of its
    own around each, which `gloo_bytes` tells. among: only these ranks of the group, this one included; they count
    themselves in this order.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float, among: Sequence[int] | None = None) -> None:
        self.timeout = timedelta(seconds=timeout_s)
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        chosen = range(len(ranks)) if among is None else among
        self.world = World(list(chosen).index(dist.get_rank(group)), len(chosen))
        self.wires = _own_group(tuple(ranks[rank] for rank in chosen), self.world, self.timeout)
        rank, size = self.world
        self._others = [(rank + distance) % size for distance in range(1, size)]  # in the order of sending
        self.sent = self.received = 0
        self.messages = [0, 0]  # sent, received

    def gloo_bytes(self) -> tuple[int, int]:
        """What gloo has sent and received so far beside what it was given."""
        sent, received = self.messages
        return _GLOO_SENDER * sent + _GLOO_RECEIVER * received, _GLOO_SENDER * received + _GLOO_RECEIVER * sent

    def barrier(self) -> None:
        self.wires.barrier().wait(self.timeout)

    def swap(self, mine: Tensor, sizes: Sequence[int], request: Request) -> list[Tensor]:
        """Everybody's bytes, in rank order; `sizes` are their lengths.

        Long messages go round a ring, as far as the shortest reaches: with one sender for each receiver no flows
        compete, and a thin link is filled. The rest goes directly. Each rank sends the same bytes either way.
        """
        rank, size = self.world
        blobs = [mine if r == rank else torch.empty(sizes[r], dtype=torch.uint8) for r in range(size)]
        common = min(sizes) if size > 2 and min(sizes) >= RING_BYTES else 0
        works = self._start([mine[common:]] * size, [blob[common:] for blob in blobs])
        if common:
            works += self._pass_round([blob[:common] for blob in blobs], request)
        self._finish(works, request)
        return blobs

    def deliver(self, outgoing: Sequence[Tensor], sizes: Sequence[int], request: Request) -> list[Tensor]:
        """Send outgoing[r] to each rank r and get sizes[r] bytes from it, all at once."""
        incoming = [torch.empty(num_bytes, dtype=torch.uint8) for num_bytes in sizes]
        incoming[self.world.rank] = outgoing[self.world.rank]
        self._finish(self._start(outgoing, incoming), request)
        return incoming

    def _start(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> list[_Started]:
        works = [(r, self.receive(incoming[r], r)) for r in reversed(self._others) if incoming[r].numel()]
        return works + [(r, self.send(outgoing[r], r)) for r in self._others if outgoing[r].numel()]

    def _pass_round(self, blobs: Sequence[Tensor], request: Request) -> list[_Started]:
        """Each rank passes on to the next what the one before sent it, until everybody has everything."""
        rank, size = self.world
        before, after = (rank - 1) % size, (rank + 1) % size
        order = [blobs[(rank - hop) % size] for hop in range(size)]
        arriving = [self.receive(blob, before) for blob in order[1:]]  # all announced now: gloo's senders wait for it
        leaving = [self.send(order[0], after)]
        for arrived, blob in zip(arriving[:-1], order[1:-1], strict=True):  # the last one has been everywhere
            self.wait(arrived, before, request)
            leaving.append(self.send(blob, after))
        return [(before, arriving[-1]), *((after, work) for work in leaving)]

    def _finish(self, works: Sequence[_Started], request: Request) -> None:
        for peer, work in works:
            self.wait(work, peer, request)

    def send(self, data: Tensor, to: int) -> Any:
        self.sent += data.numel()
        self.messages[0] += 1
        return self.wires.send([data], to, 0)

    def receive(self, into: Tensor, source: int) -> Any:
        self.received += into.numel()
        self.messages[1] += 1
        return self.wires.recv([into], source, 0)

    def hang_up(self) -> None:
        """Make every wait for a peer fail at once, from any thread; nothing can be sent or received after it.

        gloo closes all connections of a group when one of its waits runs out of time (its `abort` leaves waits as they
        are). So this waits for a message that no rank sends. Where a peer has closed its connection, the wait ends at
        once without that effect, and the next peer is tried.
        """
        for peer in range(self.world.size):
            if peer != self.world.rank:
                with suppress(RuntimeError):
                    work = self.wires.recv([torch.empty(1, dtype=torch.uint8)], peer, _HANG_UP_TAG)
                    work.wait(timedelta(milliseconds=1))

    def wait(self, work: dist.Work, peer: int | None, request: Request) -> None:
        try:
            work.wait(self.timeout)
        except RuntimeError as error:
            who = "another rank" if peer is None else f"rank {peer}"
            what = "did not answer" if "imed out" in str(error) else "closed the connection"
            raise PeerLostError(
                f"step {request.step}: {who} {what} (timeout_s={self.timeout.total_seconds():g}) while rank "
                f"{self.world.rank} waited in {request.describe()[:200]}; look into that rank's own log"
            ) from error
