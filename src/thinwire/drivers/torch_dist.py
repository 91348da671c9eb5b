"""Driver over torch.distributed: one rank per process; programs run on communication threads, one per channel."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch.profiler import record_function

from ..core import ClosedOnExit, DecodeError, PeerLostError, Program, Request, drive
from .collectives import Collectives
from .comm_thread import CommThread
from .meter import Meter
from .peers import Peers

T = TypeVar("T")
CHANNELS = 2  # programs of different channels may be under way at the same time


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
        self.peers = peers = Peers(group, timeout_s, ranks)
        self.world = self.peers.world
        self.ordered = ordered
        self.meter = meter or Meter()
        self._channels = [_Channel(self, "thinwire-comm", lambda: peers)]  # not self.peers: no cycle
        self._ahead = CommThread("thinwire-ahead")
        self._in_order: Future[Any] | None = None  # the last program submitted without `ahead`
        self._under_way: list[Future[Any]] = []  # those submitted since, with `ahead`
        self._failure: BaseException | None = None

    def run(self, program: Program[T]) -> T:
        """Run a program in this thread; each of its requests is performed by the communication thread."""
        channel = self._channels[0]
        channel.thread.check_open()
        return drive(program, lambda request: channel.thread.submit(partial(channel.perform, request)).result())

    def submit(
        self, program: Program[T], ahead: bool = False, after: Future[Any] | None = None, channel: int = 0
    ) -> Future[T]:
        """Queue a program; requests of two programs of one channel never interleave. See `Driver.submit`.

        ahead: its computation before the first request must not depend on results of earlier programs.
        """
        if not ahead:
            earlier, self._under_way = self._under_way, []
            self._in_order = self._channel(0).submit(program, after, earlier)
            return self._in_order
        start = partial(self._start, program, self._in_order)
        started = self._ahead.submit(start) if self.has_idle_cores() else _run_now(start)
        future = self._channel(channel % CHANNELS).submit(program, after, (), started)
        self._under_way.append(future)
        return future

    def has_idle_cores(self) -> bool:
        """Whether this machine has more cores than the threads of its ranks use.

        If not, a program is started by the thread that submits it: beside the backward pass, encoding would take turns
        with it on one core, and each turn would find the other's data in the cache.
        """
        return count_cores() > torch.get_num_threads() * self.peers.local_ranks

    def note_failure(self, error: BaseException) -> None:
        """Fail all later requests with this error: the connections are in an unknown state."""
        self._failure = error

    def _channel(self, number: int) -> _Channel:
        """Other channels than the first are opened when a program needs them, by all ranks alike."""
        if number == len(self._channels):
            self._channels[0].thread.check_open()
            self._channels.append(_Channel(self, "thinwire-comm-2", self.peers.open_sibling))
        return self._channels[number]

    def set_meter(self, meter: Meter) -> Meter:
        """Count with this meter from the next program on; return the previous one."""
        previous, self.meter = self.meter, meter
        return previous

    def barrier(self) -> None:
        """Return when all ranks have called it, for example around saving. Its bytes are not counted."""
        self._channels[0].thread.submit(self.peers.barrier).result()

    @property
    def is_closed(self) -> bool:
        """Whether the driver accepts no further programs."""
        return self._channels[0].thread.is_closed

    def close(self) -> None:
        """Finish the submitted programs and end the threads. Connections are closed with the driver."""
        self._ahead.close()
        for channel in self._channels:
            channel.close()

    @torch.no_grad()
    def _start(self, program: Program[T], before: Future[Any] | None) -> Request | FinishedProgram[T]:
        """The first request of a program, once `before` has ended, with or without an error."""
        if before is not None:
            before.exception()
        try:
            return next(program)
        except StopIteration as done:
            return FinishedProgram(done.value)


def count_cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def _run_now(job: Callable[[], T]) -> Future[T]:
    """The finished future of a job."""
    future: Future[T] = Future()
    try:
        future.set_result(job())
    except BaseException as error:
        future.set_exception(error)
    return future


class _Channel:
    """A communication thread with connections of its own; it runs one program after another."""

    def __init__(self, driver: TorchDist, name: str, open_peers: Callable[[], Peers]) -> None:
        self._driver = weakref.ref(driver)  # whose threads end when it is garbage-collected
        self._open_peers = open_peers
        self._collectives: Collectives | None = None
        self.thread = CommThread(name, disconnect=self.disconnect)

    def submit(
        self,
        program: Program[T],
        after: Future[Any] | None,
        earlier: Sequence[Future[Any]],
        first: Future[Request | FinishedProgram[T]] | None = None,
    ) -> Future[T]:
        """Queue a program.

        Args:
            program: the program to run.
            after: if this program failed, the new one fails alike.
            earlier: programs of any channel that must have ended before.
            first: the first request, if the program was started by another thread.
        """
        return self.thread.submit(partial(self._drive, program, after, earlier, first))

    @torch.no_grad()  # grad mode belongs to a thread
    def _drive(
        self,
        program: Program[T],
        after: Future[Any] | None,
        earlier: Sequence[Future[Any]],
        first: Future[Request | FinishedProgram[T]] | None,
    ) -> T:
        for future in earlier:
            future.exception()  # waits
        request = None if first is None else first.result()
        if after is not None and after.done() and (error := after.exception()) is not None:
            raise error
        if isinstance(request, FinishedProgram):
            return request.result
        with record_function("thinwire::exchange"):  # for profilers that record all threads
            return drive(program, self.perform, request)

    def perform(self, request: Request) -> Any:
        """The answer to a request."""
        driver = self._driver()
        assert driver is not None  # it has submitted this program
        if driver._failure is not None:
            raise driver._failure
        if driver.world.size == 1 or not request.on_wire:
            driver.meter.record(request, driver.world, 0, 0, 0, 0)
            return request.answer_alone()
        try:
            if self._collectives is None:
                self._collectives = Collectives(self._open_peers(), driver.ordered, partial(_meter_of, self._driver))
            return self._collectives.perform(request)
        except (RuntimeError, PeerLostError, DecodeError) as error:
            driver.note_failure(error)
            raise

    def close(self) -> None:
        """Finish the submitted programs, end the thread and close the connections."""
        self.thread.close()
        if self._collectives is not None:
            self._collectives.peers.close()

    def disconnect(self) -> None:
        """Make the wait of a program for a peer fail."""
        if self._collectives is not None:
            self._collectives.peers.disconnect()


def _meter_of(driver: weakref.ref[TorchDist]) -> Meter:
    owner = driver()
    assert owner is not None
    return owner.meter
