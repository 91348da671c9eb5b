"""One worker per process, among the ranks of a torch process group.

Bytes travel through gloo on the CPU. Only the all-reduce of long tensors is gloo's own; everything else is point to
point, so that messages of differing length travel without padding, a shaped link is filled, and the bytes counted are
the bytes handed over to be sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from ..core import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    DecodeError,
    Gathered,
    Op,
    Payload,
    PeerLostError,
    Program,
    ProtocolError,
    Request,
    World,
    describe,
    nbytes_of,
    payload_for,
    wire_bytes,
)
from ..core.programs import answer_alone, drive
from ..core.requests import shard_sizes, tree_children
from ..wire import as_bytes, from_bytes, pack_payload, unpack_payload
from .agreement import check_agreement
from .comm_thread import CommThread
from .headers import HEADER_BYTES, Header, headers_of
from .lockstep import combine
from .meter import Meter

T = TypeVar("T")
_Started: TypeAlias = tuple[int, Any]  # the other rank, and the work to wait for
_MOST_BYTES = 1 << 26  # a message may be so long, or eight times our own, before we believe its header
_TEXT_BYTES = 1024  # what a rank tells of its request when ranks disagree
_INTEGERS = {torch.uint8, torch.int8, torch.int32, torch.int64}  # of those gloo can reduce; others go in rank order
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_RING_BYTES = 1 << 17  # shorter messages are sent to all at once: a ring's hops would cost more time than they save
_GLOO_SENDER, _GLOO_RECEIVER = 96, 48  # bytes of gloo's own that each side of a message sends
_OPS = {Op.SUM: dist.ReduceOp.SUM, Op.MAX: dist.ReduceOp.MAX, Op.OR: dist.ReduceOp.BOR}


_made: Counter[tuple[int, ...]] = Counter()  # drivers made so far among the same ranks


def _own_group(group: dist.ProcessGroup | None, world: World, timeout: timedelta) -> Any:
    """Connections that nobody else uses, among the ranks of `group`; no other rank need take part.

    `dist.new_group` would need every process of the job, or names groups by how many a process has, which differs.
    """
    ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
    _made[ranks] += 1
    name = f"thinwire/{'-'.join(map(str, ranks))}/{_made[ranks]}"
    store = PrefixStore(name, dist.distributed_c10d._get_default_store())
    return dist.ProcessGroupGloo(store, world.rank, world.size, timeout)


class TorchDist:
    """Carries programs over a group of its own; one thread issues all collectives, in the order of submission.

    ordered: sum long tensors, too, in rank order at each shard's owner instead of by the backend's all-reduce. The same
    bytes travel; the result is then bit for bit that of `lockstep`, whatever the backend. timeout_s: how long a peer
    may be silent. messages: how many were sent and received so far; gloo puts bytes of its own around each, which the
    meter does not count and `gloo_bytes` does.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        timeout_s: float = 60.0,
        ordered: bool = False,
        meter: Meter | None = None,
    ) -> None:
        self.timeout = timedelta(seconds=timeout_s)
        self.group = group
        self.world = World(dist.get_rank(group), dist.get_world_size(group))
        self._wires = _own_group(group, self.world, self.timeout)
        self.ordered = ordered
        self.meter = meter or Meter()
        self._thread = CommThread()
        self._failure: BaseException | None = None
        self._sent = self._received = 0
        self.messages = [0, 0]  # sent, received
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def run(self, program: Program[T]) -> T:
        """Run a program in this thread; each of its requests is performed by the communication thread."""
        return drive(program, lambda request: self._thread.submit(lambda: self._perform(request)).result())

    def submit(self, program: Program[T]) -> Future[T]:
        """Queue a whole program for the communication thread; programs never interleave."""
        return self._thread.submit(lambda: self._drive(program))

    def gloo_bytes(self) -> tuple[int, int]:
        """What gloo has sent and received so far beside what it was given."""
        sent, received = self.messages
        return _GLOO_SENDER * sent + _GLOO_RECEIVER * received, _GLOO_SENDER * received + _GLOO_RECEIVER * sent

    def barrier(self) -> None:
        """Return when all ranks have called it. For saving and the like: it belongs to no algorithm, and no meter."""
        self._thread.submit(lambda: self._wires.barrier().wait(self.timeout)).result()

    def close(self) -> None:
        """Finish what was submitted. Connections end with the driver."""
        self._thread.close()

    def __enter__(self) -> TorchDist:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @torch.no_grad()  # grad mode belongs to a thread
    def _drive(self, program: Program[T]) -> T:
        return drive(program, self._perform)

    def _perform(self, request: Request) -> Any:
        if self._failure is not None:
            raise self._failure
        if self.world.size == 1:
            self.meter.record(request, self.world, 0, 0, 0, 0)
            return answer_alone(request)
        try:
            return self._collective(request)
        except (RuntimeError, PeerLostError, DecodeError) as error:
            self._failure = error
            raise

    def _collective(self, request: Request) -> Any:
        self._sent = self._received = 0
        headers = self._agree(request)
        if isinstance(request, AllReduce):
            headed = self._sent, self._received
            answer: Any = self._all_reduce(request)
            self.meter.record(request, self.world, self._sent - headed[0], self._received - headed[1], *headed)
            return answer
        lengths = [header.nbytes for header in headers]
        if isinstance(request, Broadcast):
            blobs = [self._broadcast(request, lengths[request.root])]
        elif isinstance(request, AllToAll):
            blobs = self._deliver([pack_payload(payload) for payload in request.payloads], lengths, request)
        else:
            blobs = self._swap(self._packed(request.payload, lengths[self.world.rank]), lengths, request)
        dtypes = [part.dtype for part in payload_for(request, self.world.rank).parts]
        payloads = Gathered(unpack_payload(blob, dtypes) for blob in blobs)
        if isinstance(request, AllGather):  # our own blob lies in memory that the next request will use again
            rank = self.world.rank
            payloads = Gathered((*payloads[:rank], Payload(request.payload.parts), *payloads[rank + 1 :]))
        sizes = [payload.nbytes for payload in payloads]
        if isinstance(request, Broadcast):
            sizes *= self.world.size
        sent, received = wire_bytes(request, self.world, sizes)
        self.meter.record(request, self.world, sent, received, self._sent - sent, self._received - received)
        return payloads[0] if isinstance(request, Broadcast) else payloads

    def _packed(self, payload: Payload, nbytes: int) -> Tensor:
        """In memory that is kept, because fresh pages cost more than filling them."""
        if self._buffer.numel() < nbytes:
            self._buffer = torch.empty(nbytes, dtype=torch.uint8)
        return pack_payload(payload, self._buffer)

    def _agree(self, request: Request) -> list[Header]:
        """Everybody's header; a ProtocolError if they do not ask for the same."""
        size = self.world.size
        mine = headers_of(request, size)
        packed = [torch.tensor(list(header.pack()), dtype=torch.uint8) for header in mine]
        blobs = self._deliver(packed, [HEADER_BYTES] * size, request)
        headers = [Header.unpack(bytes(blob.tolist())) for blob in blobs]
        if len({header[:2] for header in headers}) > 1:
            text = describe(request).encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES)
            texts = self._swap(torch.tensor(list(text), dtype=torch.uint8), [_TEXT_BYTES] * size, request)
            wishes = [bytes(t.tolist()).decode(errors="replace").strip() for t in texts]
            check_agreement([(header.step, wish) for header, wish in zip(headers, wishes, strict=True)])
            raise ProtocolError(f"step {request.step}: ranks disagree in a request too long to tell: {wishes[0]}")
        longest = _MOST_BYTES + 8 * max(header.nbytes for header in mine)
        for rank, header in enumerate(headers):
            if header.nbytes > longest:
                raise DecodeError(
                    f"step {request.step}: rank {rank} announces {header.nbytes} B, at most {longest} fit"
                )
        return headers

    def _all_reduce(self, request: AllReduce) -> Tensor:
        short = nbytes_of(request.tensor) < _RING_BYTES
        if self.ordered or short or request.tensor.dtype not in _INTEGERS | _FLOATS:
            return self._ordered_reduce(request)
        total = request.tensor.detach().to("cpu", copy=True).contiguous()  # gloo reduces a strided tensor wrongly
        options = dist.AllreduceOptions()
        options.reduceOp = _OPS[request.op]  # type: ignore[assignment]
        self._wait(self._wires.allreduce([total], options), None, request)
        sent, received = wire_bytes(request, self.world)
        self._sent, self._received = self._sent + sent, self._received + received
        around = 4 * (self.world.size - 1)  # gloo's ring goes round twice, with two segments for each rank
        self.messages = [count + around for count in self.messages]
        return total.to(request.tensor.device)

    def _ordered_reduce(self, request: AllReduce) -> Tensor:
        """Every rank adds up one shard of all tensors in rank order and sends the result to all.

        Two hops and half the messages of gloo's ring, so that short tensors go this way; long ones fill a link better
        by the ring.
        """
        rank, size = self.world
        flat = request.tensor.contiguous().flatten()
        counts = shard_sizes(flat.numel(), size)
        shards = torch.split(flat, counts)
        mine = self._deliver([as_bytes(s) for s in shards], [nbytes_of(shards[rank])] * size, request)
        total = combine([from_bytes(m, flat.dtype) for m in mine], request.op)
        pieces = self._swap(as_bytes(total), [nbytes_of(s) for s in shards], request)
        whole = torch.cat([from_bytes(p, flat.dtype) for p in pieces])
        return whole.view(request.tensor.shape).to(request.tensor.device)

    def _broadcast(self, request: Broadcast, nbytes: int) -> Tensor:
        """Down a binomial tree: received from the parent, passed on to the children."""
        rank, size = self.world
        if rank == request.root:
            blob = pack_payload(request.payload)
        else:
            parent = next(r for r in range(size) if rank in tree_children(r, size, request.root))
            blob = torch.empty(nbytes, dtype=torch.uint8)
            self._wait(self._receive(blob, parent), parent, request)
        for child in tree_children(rank, size, request.root):
            self._wait(self._send(blob, child), child, request)
        return blob

    def _swap(self, mine: Tensor, sizes: Sequence[int], request: Request) -> list[Tensor]:
        """Everybody's bytes, in rank order; `sizes` are their lengths.

        Long messages go round a ring, as far as the shortest reaches: with one sender for each receiver no flows
        compete, and a thin link is filled. The rest goes directly. Each rank sends the same bytes either way.
        """
        rank, size = self.world
        blobs = [mine if r == rank else torch.empty(sizes[r], dtype=torch.uint8) for r in range(size)]
        common = min(sizes) if size > 2 and min(sizes) >= _RING_BYTES else 0
        works = self._start([mine[common:]] * size, [blob[common:] for blob in blobs])
        if common:
            works += self._pass_round([blob[:common] for blob in blobs], request)
        self._finish(works, request)
        return blobs

    def _deliver(self, outgoing: Sequence[Tensor], sizes: Sequence[int], request: Request) -> list[Tensor]:
        """Send outgoing[r] to each rank r and get sizes[r] bytes from it, all at once."""
        incoming = [torch.empty(nbytes, dtype=torch.uint8) for nbytes in sizes]
        incoming[self.world.rank] = outgoing[self.world.rank]
        self._finish(self._start(outgoing, incoming), request)
        return incoming

    def _start(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> list[_Started]:
        rank, size = self.world
        others = [(rank + distance) % size for distance in range(1, size)]
        works = [(r, self._receive(incoming[r], r)) for r in reversed(others) if incoming[r].numel()]
        return works + [(r, self._send(outgoing[r], r)) for r in others if outgoing[r].numel()]

    def _pass_round(self, blobs: Sequence[Tensor], request: Request) -> list[_Started]:
        """Each rank passes on to the next what the one before sent it, until everybody has everything."""
        rank, size = self.world
        before, after = (rank - 1) % size, (rank + 1) % size
        order = [blobs[(rank - hop) % size] for hop in range(size)]
        arriving = [self._receive(blob, before) for blob in order[1:]]  # all announced now: gloo's senders wait for it
        leaving = [self._send(order[0], after)]
        for arrived, blob in zip(arriving[:-1], order[1:-1], strict=True):  # the last one has been everywhere
            self._wait(arrived, before, request)
            leaving.append(self._send(blob, after))
        return [(before, arriving[-1]), *((after, work) for work in leaving)]

    def _finish(self, works: Sequence[_Started], request: Request) -> None:
        for peer, work in works:
            self._wait(work, peer, request)

    def _send(self, data: Tensor, to: int) -> Any:
        self._sent += data.numel()
        self.messages[0] += 1
        return self._wires.send([data], to, 0)

    def _receive(self, into: Tensor, source: int) -> Any:
        self._received += into.numel()
        self.messages[1] += 1
        return self._wires.recv([into], source, 0)

    def _wait(self, work: dist.Work, peer: int | None, request: Request) -> None:
        try:
            work.wait(self.timeout)
        except RuntimeError as error:
            who = "another rank" if peer is None else f"rank {peer}"
            what = "did not answer" if "imed out" in str(error) else "closed the connection"
            raise PeerLostError(
                f"step {request.step}: {who} {what} (timeout_s={self.timeout.total_seconds():g}) while rank "
                f"{self.world.rank} waited in {describe(request)[:200]}; look into that rank's own log"
            ) from error
