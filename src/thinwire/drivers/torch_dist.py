"""Driver over torch.distributed: one rank per process, over gloo on the CPU.

Only the all-reduce of long tensors uses gloo's collective. Everything else is sent point to point, so that payloads of
different lengths need no padding, a thin link is filled, and the counted bytes are the bytes handed to gloo.
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
from .headers import HEADER_BYTES, RequestHeader, check_lengths, framed_bytes, make_headers
from .meter import Meter
from .neighbors import neighbor_exchange
from .peers import RING_BYTES, Peers

T = TypeVar("T")
_TEXT_BYTES = 1024  # length of a request's description that ranks exchange when they disagree
_INTEGERS = {torch.uint8, torch.int8, torch.int32, torch.int64}  # types that gloo can reduce; others go in rank order
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_OPS = {Op.SUM: dist.ReduceOp.SUM, Op.MAX: dist.ReduceOp.MAX, Op.OR: dist.ReduceOp.BOR}


@dataclass(frozen=True)
class FinishedProgram(Generic[T]):
    """The result of a program that made no request."""

    result: T


class TorchDist(ClosedOnExit):
    """Runs the programs of one rank over a gloo group of its own; one thread issues all collectives, in order.

    Args:
        group: the process group; None is the default group.
        timeout_s: seconds to wait for a peer within one message.
        ordered: sum long tensors in rank order at each shard's owner, too, instead of by gloo's all-reduce. The same
            number of bytes is sent; the result equals that of `lockstep` bit for bit.
        meter: counts bytes; None makes a new one.
        ranks: only these ranks of the group take part, numbered in this order; None: all.
    """

    clock = staticmethod(time.perf_counter)

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        timeout_s: float = 60.0,
        ordered: bool = False,
        meter: Meter | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.group = group
        self.peers = Peers(group, timeout_s, ranks)
        self.world = self.peers.world
        self.ordered = ordered
        self.meter = meter or Meter()
        self._thread = CommThread(disconnect=self.peers.disconnect)
        self._ahead = CommThread("thinwire-ahead")
        self._in_order: Future[Any] | None = None  # the last program submitted without `ahead`
        self._failure: BaseException | None = None
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def run(self, program: Program[T]) -> T:
        """Run a program in this thread; each of its requests is performed by the communication thread."""
        self._thread.check_open()
        return drive(program, lambda request: self._thread.submit(partial(self._perform, request)).result())

    def submit(self, program: Program[T], ahead: bool = False, after: Future[Any] | None = None) -> Future[T]:
        """Queue a program for the communication thread; requests of two programs never interleave. See `Driver.submit`.

        ahead: its computation before the first request must not depend on results of earlier programs.
        """
        if not ahead:
            self._in_order = self._thread.submit(partial(self._drive, program, after))
            return self._in_order
        started = self._ahead.submit(partial(self._start, program, self._in_order))
        return self._thread.submit(partial(self._drive, program, after, started))

    def set_meter(self, meter: Meter) -> Meter:
        """Count with this meter from the next program on; return the previous one."""
        previous, self.meter = self.meter, meter
        return previous

    def barrier(self) -> None:
        """Return when all ranks have called it, for example around saving. Its bytes are not counted."""
        self._thread.submit(self.peers.barrier).result()

    @property
    def is_closed(self) -> bool:
        """Whether the driver accepts no further programs."""
        return self._thread.is_closed

    def close(self) -> None:
        """Finish the submitted programs and end the threads. Connections are closed with the driver."""
        self._ahead.close()
        self._thread.close()

    @torch.no_grad()  # grad mode belongs to a thread
    def _drive(
        self, program: Program[T], after: Future[Any] | None, first: Future[Request | FinishedProgram[T]] | None = None
    ) -> T:
        if after is not None and (error := after.exception()) is not None:  # it is done: jobs keep their order
            raise error
        request = None if first is None else first.result()
        return request.result if isinstance(request, FinishedProgram) else drive(program, self._perform, request)

    @torch.no_grad()
    def _start(self, program: Program[T], before: Future[Any] | None) -> Request | FinishedProgram[T]:
        """The first request of a program, once `before` has ended, with or without an error."""
        if before is not None:
            before.exception()
        try:
            return next(program)
        except StopIteration as done:
            return FinishedProgram(done.value)

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
        """Record a request; the bytes sent beyond its data are headers and lengths."""
        sent, received = request.wire_bytes(self.world, sizes)
        self.meter.record(request, self.world, sent, received, self.peers.sent - sent, self.peers.received - received)

    def _exchange_headers(self, request: Request, lengths: Sequence[int]) -> list[int]:
        """Exchange headers; return the bytes that each rank will send to this one. ProtocolError if requests differ.

        lengths: bytes of the framed payloads that this rank will send to each rank.
        """
        size = self.world.size
        own = [header.pack() for header in make_headers(request, lengths)]
        blobs = self.peers.all_to_all_bytes(own, [HEADER_BYTES] * size, request)
        headers = [RequestHeader.unpack(blob) for blob in blobs]
        if len({header[:2] for header in headers}) > 1:
            text = request.describe().encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES)
            own_text = torch.tensor(list(text), dtype=torch.uint8)
            texts = self.peers.all_gather_bytes(own_text, [_TEXT_BYTES] * size, request)
            requests = [bytes(t.tolist()).decode(errors="replace").strip() for t in texts]
            check_agreement([(header.step, text) for header, text in zip(headers, requests, strict=True)])
            raise ProtocolError(f"step {request.step}: ranks disagree after the first {_TEXT_BYTES} B of {requests[0]}")
        announced = [header.num_bytes for header in headers]
        check_lengths(dict(enumerate(announced)), max(lengths), request)
        return announced

    # One handler per request type

    def _all_gather(self, request: AllGather) -> GatheredPayloads:
        (rank, size), own = self.world, request.payload
        packed = self._pack(own)
        sizes = self._exchange_headers(request, [packed.numel()] * size)
        blobs = self.peers.all_gather_bytes(packed, sizes, request)
        dtypes = types_of(own)  # our own blob is in a buffer that the next request reuses
        payloads = [Payload(own.parts) if r == rank else unpack_payload(blob, dtypes) for r, blob in enumerate(blobs)]
        self._record(request, [payload.num_bytes for payload in payloads])
        return GatheredPayloads(payloads)

    def _all_to_all(self, request: AllToAll) -> GatheredPayloads:
        packed = [pack_payload(payload) for payload in request.payloads]
        sizes = self._exchange_headers(request, [blob.numel() for blob in packed])
        blobs = self.peers.all_to_all_bytes(packed, sizes, request)
        dtypes = types_of(request.payloads[self.world.rank])
        payloads = GatheredPayloads(unpack_payload(blob, dtypes) for blob in blobs)
        self._record(request, [payload.num_bytes for payload in payloads])
        return payloads

    def _broadcast(self, request: Broadcast) -> Payload:
        """Along a binomial tree: receive from the parent, forward to the children."""
        rank, size = self.world
        nbytes = self._exchange_headers(request, [framed_bytes(request.payload)] * size)[request.root]
        if rank == request.root:
            blob = pack_payload(request.payload)
        else:
            parent = next(r for r in range(size) if rank in tree_children(r, size, request.root))
            blob = torch.empty(nbytes, dtype=torch.uint8)
            self.peers.wait(self.peers.receive(blob, parent), parent, request)
        for child in tree_children(rank, size, request.root):
            self.peers.wait(self.peers.send(blob, child), child, request)
        payload = unpack_payload(blob, types_of(request.payload))
        self._record(request, [payload.num_bytes] * size)
        return payload

    def _swap(self, request: NeighborExchange) -> GatheredPayloads:
        """Between neighbors only: other ranks do not even send headers."""
        payloads = neighbor_exchange(request, self.peers)
        self._record(request, [payload.num_bytes for payload in payloads])
        return payloads

    def _reduce_scatter(self, request: ReduceScatter) -> Tensor:
        """Each rank sums the shards that it owns, in rank order."""
        self._exchange_headers(request, [0] * self.world.size)
        own = request.shards[self.world.rank]
        total = self._combine_shards(request.shards, request.op, request)
        self._record(request)
        return total.view(own.shape).to(own.device)

    def _all_reduce(self, request: AllReduce) -> Tensor:
        self._exchange_headers(request, [0] * self.world.size)
        is_short = request.tensor.nbytes < RING_BYTES
        if self.ordered or is_short or request.tensor.dtype not in _INTEGERS | _FLOATS:
            total = self._ordered_reduce(request)
        else:
            total = self._ring_reduce(request)
        self._record(request)
        return total.view(request.tensor.shape).to(request.tensor.device)

    def _ring_reduce(self, request: AllReduce) -> Tensor:
        """Run gloo's ring all-reduce."""
        total = request.tensor.detach().to("cpu", copy=True).contiguous()  # gloo reduces a strided tensor wrongly
        options = dist.AllreduceOptions()
        options.reduceOp = _OPS[request.op]  # type: ignore[assignment]
        self.peers.wait(self.peers.gloo.allreduce([total], options), None, request)
        sent, received = request.wire_bytes(self.world)
        self.peers.sent, self.peers.received = self.peers.sent + sent, self.peers.received + received
        messages = 4 * (self.world.size - 1)  # gloo's ring passes twice, with two segments for each rank
        self.peers.messages = [count + messages for count in self.peers.messages]
        return total

    def _ordered_reduce(self, request: AllReduce) -> Tensor:
        """Each rank sums one shard in rank order and sends the result to all.

        Two hops and half the messages of gloo's ring: better for short tensors; the ring is better for long ones.
        """
        flat = request.tensor.contiguous().flatten()
        shards = torch.split(flat, shard_sizes(flat.numel(), self.world.size))
        total = self._combine_shards(shards, request.op, request)
        pieces = self.peers.all_gather_bytes(as_bytes(total), [s.nbytes for s in shards], request)
        return torch.cat([from_bytes(piece, flat.dtype) for piece in pieces])

    def _combine_shards(self, shards: Sequence[Tensor], op: Op, request: Request) -> Tensor:
        own = shards[self.world.rank]
        blobs = self.peers.all_to_all_bytes([as_bytes(s) for s in shards], [own.nbytes] * self.world.size, request)
        return combine([from_bytes(blob, own.dtype) for blob in blobs], op)

    def _pack(self, payload: Payload) -> Tensor:
        """Pack into a buffer that is reused, because allocating fresh pages costs more than filling them."""
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
