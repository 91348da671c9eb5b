"""One worker per process, among the ranks of a torch process group.

Bytes travel through gloo on the CPU. Only the all-reduce of long tensors is gloo's own; everything else is point to
point, so that messages of differing length travel without padding, a shaped link is filled, and the bytes counted are
the bytes handed over to be sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..core import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    ClosedOnExit,
    DecodeError,
    GatheredPayloads,
    NeighborExchange,
    Op,
    Payload,
    PeerLostError,
    Program,
    ProtocolError,
    ReduceScatter,
    Request,
    combine,
    drive,
    shard_sizes,
    tree_children,
    types_of,
)
from ..wire import as_bytes, from_bytes, pack_payload, unpack_payload
from .agreement import check_agreement
from .comm_thread import CommThread
from .headers import HEADER_BYTES, Header, check_lengths, framed_bytes, headers_of
from .meter import Meter
from .neighbours import swap
from .peers import RING_BYTES, Peers

T = TypeVar("T")
_TEXT_BYTES = 1024  # what a rank tells of its request when ranks disagree
_INTEGERS = {torch.uint8, torch.int8, torch.int32, torch.int64}  # of those gloo can reduce; others go in rank order
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_OPS = {Op.SUM: dist.ReduceOp.SUM, Op.MAX: dist.ReduceOp.MAX, Op.OR: dist.ReduceOp.BOR}


@dataclass(frozen=True)
class Ended(Generic[T]):
    """What a program gave that asked for nothing."""

    result: T


class TorchDist(ClosedOnExit):
    """Carries programs over a group of its own; one thread issues all collectives, in the order of submission.

    ordered: sum long tensors, too, in rank order at each shard's owner instead of by the backend's all-reduce. The same
    bytes travel; the result is then bit for bit that of `lockstep`, whatever the backend. timeout_s: how long a peer
    may be silent. among: only these ranks of the group make it, and number themselves in this order.
    """

    clock = staticmethod(time.perf_counter)

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        timeout_s: float = 60.0,
        ordered: bool = False,
        meter: Meter | None = None,
        among: Sequence[int] | None = None,
    ) -> None:
        self.group = group
        self.peers = Peers(group, timeout_s, among)
        self.world = self.peers.world
        self.ordered = ordered
        self.meter = meter or Meter()
        self._thread = CommThread(hang_up=self.peers.hang_up)
        self._ahead = CommThread("thinwire-ahead")
        self._in_order: Future[Any] | None = None  # the last program that nothing overtakes
        self._failure: BaseException | None = None
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def run(self, program: Program[T]) -> T:
        """Run a program in this thread; each of its requests is performed by the communication thread."""
        self._thread.check_open()
        return drive(program, lambda request: self._thread.submit(partial(self._perform, request)).result())

    def submit(self, program: Program[T], ahead: bool = False, after: Future[Any] | None = None) -> Future[T]:
        """Queue a whole program for the communication thread; requests of two programs never interleave.

        ahead: what it computes before its first request may be done while earlier programs wait for answers to theirs,
        if they were queued with `ahead`, too. It must not depend on what those find out. after: a program queued
        before; if that one failed, this one sends nothing and fails with the same error.
        """
        if not ahead:
            self._in_order = self._thread.submit(partial(self._drive, program, after))
            return self._in_order
        begun = self._ahead.submit(partial(self._begin, program, self._in_order))
        return self._thread.submit(partial(self._drive, program, after, begun))

    def count_with(self, meter: Meter) -> Meter:
        before, self.meter = self.meter, meter
        return before

    def barrier(self) -> None:
        """Return when all ranks have called it. For saving and the like: it belongs to no algorithm, and no meter."""
        self._thread.submit(self.peers.barrier).result()

    @property
    def is_closed(self) -> bool:
        return self._thread.is_closed

    def close(self) -> None:
        """Finish what was submitted. Connections end with the driver."""
        self._ahead.close()
        self._thread.close()

    @torch.no_grad()  # grad mode belongs to a thread
    def _drive(
        self, program: Program[T], after: Future[Any] | None, begun: Future[Request | Ended[T]] | None = None
    ) -> T:
        if after is not None and (error := after.exception()) is not None:  # it is done: jobs keep their order
            raise error
        first = None if begun is None else begun.result()
        return first.result if isinstance(first, Ended) else drive(program, self._perform, first)

    @torch.no_grad()
    def _begin(self, program: Program[T], before: Future[Any] | None) -> Request | Ended[T]:
        """A program's first request, once `before` is done, well or not."""
        if before is not None:
            before.exception()
        try:
            return next(program)
        except StopIteration as done:
            return Ended(done.value)

    def _perform(self, request: Request) -> Any:
        if self._failure is not None:
            raise self._failure
        if self.world.size == 1 or not request.on_wire:
            self.meter.record(request, self.world, 0, 0, 0, 0)
            return request.answer_alone()
        request.check(self.world)
        handler = _HANDLERS.get(type(request))
        if handler is None:
            raise ProtocolError(f"step {request.step}: TorchDist has no handler for {request.describe()}")
        self.peers.sent = self.peers.received = 0
        try:
            return handler(self, request)
        except (RuntimeError, PeerLostError, DecodeError) as error:
            self._failure = error
            raise

    def _record(self, request: Request, sizes: Sequence[int] | None = None) -> None:
        """What was sent beyond the request's data are headers and lengths."""
        sent, received = request.wire_bytes(self.world, sizes)
        self.meter.record(request, self.world, sent, received, self.peers.sent - sent, self.peers.received - received)

    def _agree(self, request: Request, lengths: Sequence[int]) -> list[int]:
        """Bytes that each rank has for this one; a ProtocolError if ranks do not ask for the same.

        lengths: bytes of the framed payloads that this rank will send to each.
        """
        size = self.world.size
        mine = headers_of(request, lengths)
        blobs = self.peers.deliver([header.pack() for header in mine], [HEADER_BYTES] * size, request)
        headers = [Header.unpack(blob) for blob in blobs]
        if len({header[:2] for header in headers}) > 1:
            text = request.describe().encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES)
            texts = self.peers.swap(torch.tensor(list(text), dtype=torch.uint8), [_TEXT_BYTES] * size, request)
            wishes = [bytes(t.tolist()).decode(errors="replace").strip() for t in texts]
            check_agreement([(header.step, wish) for header, wish in zip(headers, wishes, strict=True)])
            raise ProtocolError(f"step {request.step}: ranks disagree in a request too long to tell: {wishes[0]}")
        coming = [header.num_bytes for header in headers]
        check_lengths(dict(enumerate(coming)), max(lengths), request)
        return coming

    # One handler for each kind of request

    def _all_gather(self, request: AllGather) -> GatheredPayloads:
        (rank, size), own = self.world, request.payload
        packed = self._packed(own)
        blobs = self.peers.swap(packed, self._agree(request, [packed.numel()] * size), request)
        dtypes = types_of(own)  # our own blob lies in memory that the next request will use again
        payloads = [Payload(own.parts) if r == rank else unpack_payload(blob, dtypes) for r, blob in enumerate(blobs)]
        self._record(request, [payload.num_bytes for payload in payloads])
        return GatheredPayloads(payloads)

    def _all_to_all(self, request: AllToAll) -> GatheredPayloads:
        packed = [pack_payload(payload) for payload in request.payloads]
        blobs = self.peers.deliver(packed, self._agree(request, [blob.numel() for blob in packed]), request)
        dtypes = types_of(request.payloads[self.world.rank])
        payloads = GatheredPayloads(unpack_payload(blob, dtypes) for blob in blobs)
        self._record(request, [payload.num_bytes for payload in payloads])
        return payloads

    def _broadcast(self, request: Broadcast) -> Payload:
        """Down a binomial tree: received from the parent, passed on to the children."""
        rank, size = self.world
        num_bytes = self._agree(request, [framed_bytes(request.payload)] * size)[request.root]
        if rank == request.root:
            blob = pack_payload(request.payload)
        else:
            parent = next(r for r in range(size) if rank in tree_children(r, size, request.root))
            blob = torch.empty(num_bytes, dtype=torch.uint8)
            self.peers.wait(self.peers.receive(blob, parent), parent, request)
        for child in tree_children(rank, size, request.root):
            self.peers.wait(self.peers.send(blob, child), child, request)
        payload = unpack_payload(blob, types_of(request.payload))
        self._record(request, [payload.num_bytes] * size)
        return payload

    def _swap(self, request: NeighborExchange) -> GatheredPayloads:
        """Among partners only: no other rank hears of it, not even by a header."""
        payloads = swap(request, self.peers)
        self._record(request, [payload.num_bytes for payload in payloads])
        return payloads

    def _reduce_scatter(self, request: ReduceScatter) -> Tensor:
        """Each rank adds up its own shards of all ranks, in rank order."""
        self._agree(request, [0] * self.world.size)
        own = request.shards[self.world.rank]
        total = self._combine_shards(request.shards, request.op, request)
        self._record(request)
        return total.view(own.shape).to(own.device)

    def _all_reduce(self, request: AllReduce) -> Tensor:
        self._agree(request, [0] * self.world.size)
        short = request.tensor.nbytes < RING_BYTES
        if self.ordered or short or request.tensor.dtype not in _INTEGERS | _FLOATS:
            total = self._ordered_reduce(request)
        else:
            total = self._ring_reduce(request)
        self._record(request)
        return total.view(request.tensor.shape).to(request.tensor.device)

    def _ring_reduce(self, request: AllReduce) -> Tensor:
        """gloo's own."""
        total = request.tensor.detach().to("cpu", copy=True).contiguous()  # gloo reduces a strided tensor wrongly
        options = dist.AllreduceOptions()
        options.reduceOp = _OPS[request.op]  # type: ignore[assignment]
        self.peers.wait(self.peers.wires.allreduce([total], options), None, request)
        sent, received = request.wire_bytes(self.world)
        self.peers.sent, self.peers.received = self.peers.sent + sent, self.peers.received + received
        around = 4 * (self.world.size - 1)  # gloo's ring goes round twice, with two segments for each rank
        self.peers.messages = [count + around for count in self.peers.messages]
        return total

    def _ordered_reduce(self, request: AllReduce) -> Tensor:
        """Every rank adds up one shard of all tensors in rank order and sends the result to all.

        Two hops and half the messages of gloo's ring, so that short tensors go this way; long ones fill a link better
        by the ring.
        """
        flat = request.tensor.contiguous().flatten()
        shards = torch.split(flat, shard_sizes(flat.numel(), self.world.size))
        total = self._combine_shards(shards, request.op, request)
        pieces = self.peers.swap(as_bytes(total), [s.nbytes for s in shards], request)
        return torch.cat([from_bytes(piece, flat.dtype) for piece in pieces])

    def _combine_shards(self, shards: Sequence[Tensor], op: Op, request: Request) -> Tensor:
        own = shards[self.world.rank]
        blobs = self.peers.deliver([as_bytes(s) for s in shards], [own.nbytes] * self.world.size, request)
        return combine([from_bytes(blob, own.dtype) for blob in blobs], op)

    def _packed(self, payload: Payload) -> Tensor:
        """In memory that is kept, because fresh pages cost more than filling them."""
        packed = pack_payload(payload, self._buffer)
        if packed.numel() > self._buffer.numel():
            self._buffer = packed
        return packed


_HANDLERS: dict[type[Request], Callable[[TorchDist, Any], Any]] = {
    AllGather: TorchDist._all_gather,
    AllReduce: TorchDist._all_reduce,
    AllToAll: TorchDist._all_to_all,
    Broadcast: TorchDist._broadcast,
    ReduceScatter: TorchDist._reduce_scatter,
    NeighborExchange: TorchDist._swap,
}
