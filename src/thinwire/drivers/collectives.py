"""The requests of one rank performed over its connections: one handler for each kind of request.

Only the all-reduce of long tensors between more than two ranks uses gloo's collective. Everything else is sent over
connections of our own, so that payloads of different lengths need no padding, a thin link is filled with few wake-ups,
and the counted bytes are the bytes handed to the sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..core import (
    Addend,
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    DecodeError,
    GatheredPayloads,
    NeighborExchange,
    Op,
    Payload,
    ProtocolError,
    ReduceScatter,
    Request,
    RequestGroup,
    combine,
    shard_sizes,
    tree_children,
    types_of,
)
from ..kernels.memory import empty
from ..wire import as_bytes, from_bytes, pack_payload, unpack_payload
from .mesh import Receiver, bytes_of
from .meter import Meter
from .neighbors import neighbor_exchange
from .pair_sum import CHUNK_BYTES, receive_sum
from .peers import Peers
from .routes import LONG_BYTES

_NOTHING = torch.empty(0, dtype=torch.uint8)
_INTEGERS = {torch.uint8, torch.int8, torch.int32, torch.int64}  # types that gloo can reduce; others go in rank order
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_OPS = {Op.SUM: dist.ReduceOp.SUM, Op.MAX: dist.ReduceOp.MAX, Op.OR: dist.ReduceOp.BOR}


class Collectives:
    """Performs requests one at a time, and records their bytes.

    Args:
        peers: the connections.
        ordered: sum long tensors in rank order, too, instead of by gloo's all-reduce.
        meter: returns the meter to count with.
    """

    def __init__(self, peers: Peers, ordered: bool, meter: Callable[[], Meter]) -> None:
        self.peers, self.world, self.ordered, self._get_meter = peers, peers.world, ordered, meter
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def perform(self, request: Request) -> Any:
        """The answer to a request that needs the other ranks."""
        request.check(self.world)
        handler = _HANDLERS.get(type(request))
        if handler is None:
            raise ProtocolError(f"step {request.step}: TorchDist has no handler for {request.describe()}")
        self.peers.sent = self.peers.received = 0
        return handler(self, request)

    @property
    def meter(self) -> Meter:
        """Where bytes are counted."""
        return self._get_meter()

    def _record(self, request: Request, sizes: Sequence[int] | None = None) -> None:
        """Record a request; the bytes sent beyond its data are headers and lengths."""
        sent, received = request.wire_bytes(self.world, sizes)
        self.meter.record(request, self.world, sent, received, self.peers.sent - sent, self.peers.received - received)

    # One handler per request type

    def _all_gather(self, request: AllGather) -> GatheredPayloads:
        own, dtypes = request.payload, types_of(request.payload)
        blobs = self.peers.all_gather(self._pack(own), request)
        payloads = [
            own.unlabeled() if r == self.world.rank else unpack_payload(blob, dtypes) for r, blob in enumerate(blobs)
        ]  # our own blob is in a buffer that the next request reuses
        self._record(request, [payload.num_bytes for payload in payloads])
        return GatheredPayloads(payloads)

    def _group(self, request: RequestGroup) -> list[Any]:
        """Two ranks exchange one message for all members; more ranks perform one member after another."""
        if self.world.size > 2:
            return [self.perform(member) for member in request.requests]
        own, other = request.joined_payload(), 1 - self.world.rank
        last: list[Tensor] = []
        if request.tail is None:
            _, received = self.peers.exchange_with_all({other: self._pack(own)}, request)
            data = received[other]
        else:
            data, total = self._sum_behind(self._pack(own), request.tail, request)
            last = [total.view(request.tail.tensor.shape).to(request.tail.tensor.device)]
        theirs = unpack_payload(data, types_of(own))
        answers = request.answer_from([own, theirs] if self.world.rank == 0 else [theirs, own])
        self._record_group(request, theirs)
        return answers + last

    def _record_group(self, request: RequestGroup, theirs: Payload) -> None:
        """Record each member; the bytes beyond their data are counted with the first."""
        sizes: list[list[int] | None] = [[payload.num_bytes] * 2 for payload in request.cut(theirs)]
        sizes += [None] * (request.tail is not None)
        pairs = [m.wire_bytes(self.world, own) for m, own in zip(request.requests, sizes, strict=True)]
        header = self.peers.sent - sum(p[0] for p in pairs), self.peers.received - sum(p[1] for p in pairs)
        for member, pair in zip(request.requests, pairs, strict=True):
            self.meter.record(member, self.world, *pair, *header)
            header = 0, 0

    def _all_to_all(self, request: AllToAll) -> GatheredPayloads:
        rank, own = self.world.rank, request.payloads[self.world.rank]
        outgoing = {r: pack_payload(request.payloads[r]) for r in self.peers.others}
        _, received = self.peers.exchange_with_all(outgoing, request)
        dtypes = types_of(own)
        payloads = GatheredPayloads(
            own.unlabeled() if r == rank else unpack_payload(received[r], dtypes) for r in range(self.world.size)
        )
        self._record(request, [payload.num_bytes for payload in payloads])
        return payloads

    def _broadcast(self, request: Broadcast) -> Payload:
        """Along a binomial tree: receive from the parent, forward to the children."""
        rank, size = self.world
        blob = pack_payload(request.payload)
        num_bytes = self.peers.agree(blob, request)[request.root]
        if rank != request.root:
            parent = next(r for r in range(size) if rank in tree_children(r, size, request.root))
            blob = torch.empty(num_bytes, dtype=torch.uint8)
            self.peers.transfer_bytes({}, {parent: bytes_of(blob)}, request)
        children = tree_children(rank, size, request.root)
        self.peers.transfer_bytes(dict.fromkeys(children, bytes_of(blob)), {}, request)
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
        own = request.shards[self.world.rank]
        total = self._combine_shards(request.shards, request.op, request)
        self._record(request)
        return total.view(own.shape).to(own.device)

    def _all_reduce(self, request: AllReduce) -> Tensor:
        if self.world.size == 2:
            total = self._reduce_pair(request)
        elif self.ordered or request.tensor.nbytes < LONG_BYTES or request.tensor.dtype not in _INTEGERS | _FLOATS:
            total = self._ordered_reduce(request)
        else:
            total = self._ring_reduce(request)
        self._record(request)
        return total.view(request.tensor.shape).to(request.tensor.device)

    def _reduce_pair(self, request: AllReduce) -> Tensor:
        """Two ranks send each other the whole tensor: as many bytes as by shards, in one hop."""
        flat = request.tensor.detach().to("cpu").contiguous().flatten()
        if request.op is Op.SUM and flat.nbytes > CHUNK_BYTES:
            return self._sum_pair(flat, request)
        other = 1 - self.world.rank
        _, received = self.peers.exchange_with_all({other: as_bytes(flat)}, request)
        theirs = self._expect_bytes(received[other], flat, other, request)
        if request.op is Op.SUM:
            return torch.add(flat, theirs, out=theirs)  # the same bits in either order, and no new memory
        return combine([flat, theirs] if self.world.rank == 0 else [theirs, flat], request.op)

    def _sum_pair(self, flat: Tensor, request: AllReduce) -> Tensor:
        """Add what the other rank sends while it arrives."""
        data, total = self._sum_behind(_NOTHING, Addend(flat, request.out), request)
        self._check_length(data.numel() + flat.nbytes, flat, 1 - self.world.rank, request)
        return total

    def _sum_behind(self, head: Tensor, addend: Addend, request: Request) -> tuple[Tensor, Tensor]:
        """Send these bytes and a tensor behind them; return the other rank's bytes and the sum of the tensors.

        What the other rank sends is added while it arrives.
        """
        flat = addend.tensor.detach().to("cpu").contiguous().flatten()
        total, other, heads = _output_vector(*addend), 1 - self.world.rank, list[Tensor]()

        def read(source: int, num_bytes: int) -> Receiver:
            if num_bytes < flat.nbytes:
                self._check_length(num_bytes, flat, source, request)
            heads.append(torch.empty(num_bytes - flat.nbytes, dtype=torch.uint8))
            yield bytes_of(heads[0])
            yield from receive_sum(flat, total)

        self.peers.exchange_with_all({other: head}, request, read=read, tail=as_bytes(flat))
        if not heads:
            self._check_length(0, flat, other, request)  # a header without data: `total` was not written
        return heads[0], total

    def _ring_reduce(self, request: AllReduce) -> Tensor:
        """Run gloo's ring all-reduce."""
        self.peers.agree(_NOTHING, request)
        total = _output_vector(request.tensor, request.out)  # gloo reduces a strided tensor wrongly
        total.view(request.tensor.shape).copy_(request.tensor.detach())
        options = dist.AllreduceOptions()
        options.reduceOp = _OPS[request.op]  # type: ignore[assignment]
        self.peers.wait_for_gloo(self.peers.gloo.allreduce([total], options), request)
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
        rank, own = self.world.rank, shards[self.world.rank].contiguous().flatten()
        outgoing = {r: as_bytes(shards[r]) for r in self.peers.others}
        _, received = self.peers.exchange_with_all(outgoing, request)
        parts = [own if r == rank else self._expect_bytes(received[r], own, r, request) for r in range(self.world.size)]
        return combine(parts, op)

    def _expect_bytes(self, data: Tensor, like: Tensor, source: int, request: Request) -> Tensor:
        """Received data as a vector like this one."""
        self._check_length(data.numel(), like, source, request)
        return from_bytes(data, like.dtype)

    def _check_length(self, num_bytes: int, like: Tensor, source: int, request: Request) -> None:
        if num_bytes != like.nbytes:
            raise DecodeError(
                f"step {request.step}: rank {source} sent {num_bytes} B for {request.describe()}, expected "
                f"{like.nbytes} B"
            )

    def _pack(self, payload: Payload) -> Tensor:
        """Pack into a buffer that is reused, because allocating fresh pages costs more than filling them."""
        packed = pack_payload(payload, self._buffer)
        if packed.numel() > self._buffer.numel():
            self._buffer = packed
        return packed


def _output_vector(tensor: Tensor, out: Tensor | None) -> Tensor:
    """Memory for a sum of such tensors as a vector on the CPU: that of `out`, if it can be used."""
    if out is not None and out.is_cpu and out.is_contiguous():
        return out.detach().flatten()
    return empty(tensor.numel(), tensor.dtype)


_HANDLERS: dict[type[Request], Callable[[Collectives, Any], Any]] = {
    AllGather: Collectives._all_gather,
    RequestGroup: Collectives._group,
    AllReduce: Collectives._all_reduce,
    AllToAll: Collectives._all_to_all,
    Broadcast: Collectives._broadcast,
    ReduceScatter: Collectives._reduce_scatter,
    NeighborExchange: Collectives._swap,
}
