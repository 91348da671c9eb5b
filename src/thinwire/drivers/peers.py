"""Messages between the ranks of a group, with byte counts: over a mesh of TCP connections, or by gloo's all-reduce."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore

from ..core import PeerLostError, Request, World
from ..core.logs import set_log_rank
from ..core.torch_private import default_store
from ..kernels.memory import empty
from .agreement import check_agreement
from .headers import HEADER_BYTES, RequestHeader, check_lengths, make_header
from .mesh import Buffer, LostConnection, Mesh, Receiver, bytes_of, receive_into
from .mesh_setup import count_local_ranks
from .routes import LONG_BYTES, LongMessages, ring_route

_GLOO_SENDER, _GLOO_RECEIVER = 96, 48  # bytes of gloo's own that each side of a message sends
_TEXT_BYTES = 1024  # length of a request's description that ranks exchange when they disagree
_DRAIN_BYTES = 1 << 20  # read at a time of data that nothing can be made of

DataReader: TypeAlias = Callable[[int, int], Receiver]  # for the data of this source with so many bytes

_num_groups: Counter[tuple[int, ...]] = Counter()  # groups made so far for the same ranks


def _new_store(ranks: tuple[int, ...]) -> Any:
    """A store with keys of its own for these ranks of the job; other ranks take no part.

    `dist.new_group` must be called by every process of the job, or names groups by a counter that differs between
    processes.
    """
    _num_groups[ranks] += 1
    name = f"thinwire/{'-'.join(map(str, ranks))}/{_num_groups[ranks]}"
    return PrefixStore(name, default_store(dist.distributed_c10d))


class Peers:
    """The connections of one rank to the other ranks of its group.

    Attributes:
        sent, received: bytes of headers and data.
        messages: number of gloo's messages sent and received; `gloo_bytes` gives the bytes that gloo adds to them.

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
        self._connect(_new_store(tuple(global_ranks[rank] for rank in chosen)))
        self.local_ranks = count_local_ranks(self.world, self._store)  # on this machine, this one included

    def open_sibling(self) -> Peers:
        """Further connections between the same ranks, for messages that must not wait for those of this object."""
        sibling = copy(self)
        sibling._connect(PrefixStore("sibling", self._store))
        return sibling

    def _connect(self, store: Any) -> None:
        self._store = store
        self.gloo: Any = dist.ProcessGroupGloo(
            PrefixStore("gloo", store), self.world.rank, self.world.size, self.timeout
        )
        self._mesh = Mesh(self.world, PrefixStore("mesh", store), self.timeout.total_seconds())
        self._long = LongMessages(self._mesh.round_trip_s)
        rank, size = self.world
        self.others = [(rank + distance) % size for distance in range(1, size)]  # in the order of sending
        self.sent = self.received = 0
        self.messages = [0, 0]  # sent, received

    def gloo_bytes(self) -> tuple[int, int]:
        """Bytes that gloo has sent and received so far in addition to the data."""
        sent, received = self.messages
        return _GLOO_SENDER * sent + _GLOO_RECEIVER * received, _GLOO_SENDER * received + _GLOO_RECEIVER * sent

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.gloo.barrier().wait(self.timeout)

    # Messages with headers

    def exchange(
        self,
        outgoing: Mapping[int, Tensor],
        sources: Sequence[int],
        request: Request,
        is_detached: bool = False,
        read: DataReader | None = None,
        tail: Tensor | None = None,
    ) -> tuple[dict[int, RequestHeader], dict[int, Tensor]]:
        """Send data to some ranks, each with a header, and receive such messages.

        Args:
            outgoing: the bytes for each rank.
            sources: the ranks that send to this one.
            request: what the ranks must agree on.
            is_detached: send only headers; the data follow once all ranks know the lengths.
            read: receives the data in place of this method, which then returns headers only.
            tail: more bytes for all ranks, sent behind the data.

        Returns:
            Headers by source, and the data that came with those of the same request.

        Raises:
            DecodeError: a header announces more than the request can need.
        """
        more = 0 if tail is None else tail.numel()
        longest = more + max([data.numel() for data in outgoing.values()], default=0)
        own = make_header(request, longest, is_detached)
        headers: dict[int, RequestHeader] = {}
        received: dict[int, Tensor] = {}

        def receive(source: int) -> Receiver:
            head = bytearray(HEADER_BYTES)
            yield memoryview(head)
            headers[source] = header = RequestHeader.unpack(head)
            if not header.agrees_with(own):
                yield from _drain(header)
                return
            check_lengths({source: header.num_bytes}, longest, request)
            if not header.is_detached:
                yield from (read or read_whole)(source, header.num_bytes)

        def read_whole(source: int, num_bytes: int) -> Receiver:
            received[source] = data = empty(num_bytes, torch.uint8, varies=True)
            yield bytes_of(data)

        lengths = {rank: data.numel() + more for rank, data in outgoing.items()}
        messages = {rank: [memoryview(own._replace(num_bytes=length).pack())] for rank, length in lengths.items()}
        if not is_detached:
            for rank, data in outgoing.items():
                messages[rank] += [bytes_of(each) for each in (data, tail) if each is not None]
        self._transfer(messages, {source: receive(source) for source in sources}, request)
        return headers, received

    def exchange_with_all(
        self,
        outgoing: Mapping[int, Tensor],
        request: Request,
        is_detached: bool = False,
        read: DataReader | None = None,
        tail: Tensor | None = None,
    ) -> tuple[dict[int, RequestHeader], dict[int, Tensor]]:
        """`exchange` with all other ranks; ProtocolError if their requests differ from this rank's."""
        headers, received = self.exchange(outgoing, self.others, request, is_detached, read, tail)
        self._check_agreement(headers, make_header(request, 0), request)
        return headers, received

    def agree(self, data: Tensor, request: Request) -> list[int]:
        """Agree on a request with all ranks before its data are sent; returns the bytes that each rank will send."""
        headers, _ = self.exchange_with_all(dict.fromkeys(self.others, data), request, is_detached=True)
        return [headers[r].num_bytes if r in headers else data.numel() for r in range(self.world.size)]

    def all_gather(self, own: Tensor, request: Request) -> list[Tensor]:
        """All-gather of bytes of any length: short messages at once, long ones once all ranks know the lengths."""
        is_long = self.world.size > 2 and self._long.is_long(own.numel())
        headers, received = self.exchange_with_all(dict.fromkeys(self.others, own), request, is_long)
        late = [r for r in headers if headers[r].is_detached]
        received |= {r: empty(headers[r].num_bytes, torch.uint8, varies=True) for r in late}
        blobs = [received.get(r, own) for r in range(self.world.size)]
        if is_long and len(late) == self.world.size - 1:
            self._fill_blobs(blobs, min(blob.numel() for blob in blobs), request)
        elif is_long or late:  # only some ranks have long ones
            outgoing = dict.fromkeys(self.others, bytes_of(own)) if is_long else {}
            self.transfer_bytes(outgoing, {r: bytes_of(received[r]) for r in late}, request)
        return blobs

    def _check_agreement(self, headers: Mapping[int, RequestHeader], own: RequestHeader, request: Request) -> None:
        """If headers differ, all ranks have seen it: they exchange the descriptions of their requests."""
        if all(header.agrees_with(own) for header in headers.values()):
            return
        text = request.describe().encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES)
        texts = {rank: bytearray(_TEXT_BYTES) for rank in self.others}
        receivers = {rank: receive_into(memoryview(buffer)) for rank, buffer in texts.items()}
        self._transfer({rank: [memoryview(text)] for rank in self.others}, receivers, request)
        steps = {self.world.rank: own.step} | {rank: header.step for rank, header in headers.items()}
        described = {self.world.rank: text} | {rank: bytes(buffer) for rank, buffer in texts.items()}
        check_agreement(
            [(steps[rank], described[rank].decode(errors="replace").strip()) for rank in range(self.world.size)]
        )

    # Data with known lengths, after the ranks have agreed

    def all_gather_bytes(self, own: Tensor, sizes: Sequence[int], request: Request) -> list[Tensor]:
        """All-gather: the bytes of every rank, in rank order; `sizes` are their lengths."""
        rank, size = self.world
        blobs = [own if r == rank else empty(sizes[r], torch.uint8, varies=True) for r in range(size)]
        are_long = size > 2 and min(sizes) >= LONG_BYTES
        self._fill_blobs(blobs, min(sizes) if are_long else 0, request)
        return blobs

    def _fill_blobs(self, blobs: Sequence[Tensor], common: int, request: Request) -> None:
        """Receive the blobs of all other ranks: the first `common` bytes around a ring, the rest directly.

        Each rank sends the same number of bytes either way.
        """
        if common:
            self._transfer(*ring_route(self.world, [bytes_of(blob[:common]) for blob in blobs]), request)
        rest = [bytes_of(blob[common:]) for blob in blobs]
        self.transfer_bytes(
            dict.fromkeys(self.others, rest[self.world.rank]), {r: rest[r] for r in self.others}, request
        )

    def transfer_bytes(self, outgoing: Mapping[int, Buffer], incoming: Mapping[int, Buffer], request: Request) -> None:
        """Send and receive data without headers."""
        receivers = {rank: receive_into(buffer) for rank, buffer in incoming.items()}
        self._transfer({rank: [buffer] for rank, buffer in outgoing.items()}, receivers, request)

    def _transfer(
        self, outgoing: Mapping[int, list[Buffer]], receivers: Mapping[int, Receiver], request: Request
    ) -> None:
        sent, received, began = self.sent, self.received, time.perf_counter()
        try:
            self.sent += self._mesh.transfer(outgoing, {rank: self._count(each) for rank, each in receivers.items()})
        except LostConnection as lost:
            raise self._name_lost(lost.ranks, lost.closed, request) from lost
        if self.world.size > 2:
            self._long.add_transfer(max(self.sent - sent, self.received - received), time.perf_counter() - began)

    def _count(self, receiver: Receiver) -> Receiver:
        for buffer in receiver:
            self.received += buffer.nbytes
            yield buffer

    def wait_for_gloo(self, work: dist.Work, request: Request) -> None:
        """Wait for a collective of gloo's, which does not tell which rank failed."""
        try:
            work.wait(self.timeout)
        except RuntimeError as error:
            raise self._name_lost([], "imed out" not in str(error), request) from error

    def _name_lost(self, ranks: Sequence[int], closed: bool, request: Request) -> PeerLostError:
        subject = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" if ranks else "another rank"
        event = "closed the connection" if closed else "did not answer"
        return PeerLostError(
            f"step {request.step}: {subject} {event} (timeout_s={self.timeout.total_seconds():g}) while rank "
            f"{self.world.rank} waited in {request.describe()[:200]}; see the log of that rank"
        )

    def close(self) -> None:
        """Close the connections of the mesh; gloo's are closed with this object."""
        self._mesh.close()

    def disconnect(self) -> None:
        """Make every wait for a peer fail at once, from any thread; nothing can be sent or received afterwards.

        gloo closes all connections of a group when one of its waits times out (its `abort` does not end waits). So
        this waits for a message that no rank sends. If a peer has closed its connection already, the wait ends at once
        without that effect, and the next peer is tried.
        """
        self._mesh.disconnect()
        for peer in self.others:
            with suppress(RuntimeError):
                self.gloo.recv([torch.empty(1, dtype=torch.uint8)], peer, 0).wait(timedelta(milliseconds=1))


def _drain(header: RequestHeader) -> Iterator[Buffer]:
    """Buffers for the data of a request that this rank does not expect."""
    left = 0 if header.is_detached else header.num_bytes
    scratch = memoryview(bytearray(min(left, _DRAIN_BYTES)))
    while left > 0:
        yield scratch[: min(left, _DRAIN_BYTES)]
        left -= _DRAIN_BYTES
