"""A driver for a world of one rank: scripts that use thinwire run unchanged without a process group."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from ..core import ClosedError, Program, Request, World, drive
from .comm_thread import CLOSED
from .meter import Meter

T = TypeVar("T")


class SingleRank:
    """Answers each request with its own data and counts the payload bytes that several ranks would hand over."""

    clock = None  # no measured times, so that runs repeat bit for bit

    def __init__(self) -> None:
        self.world, self.meter = World(0, 1), Meter()
        self.is_closed = False

    @torch.no_grad()
    def run(self, program: Program[T]) -> T:
        """Run a program to its end and return its result."""
        self._check_open()
        return drive(program, self._perform)

    def submit(
        self, program: Program[T], ahead: bool = False, after: Future[Any] | None = None, channel: int = 0
    ) -> Future[T]:
        """Run the program at once and return a finished future: there is no other rank to wait for."""
        self._check_open()
        done: Future[T] = Future()
        try:
            if after is not None and (failure := after.exception()) is not None:
                raise failure
            done.set_result(self.run(program))
        except BaseException as error:
            done.set_exception(error)
        return done

    def set_meter(self, meter: Meter) -> Meter:
        """Count with this meter from the next program on; return the previous one."""
        previous, self.meter = self.meter, meter
        return previous

    def barrier(self) -> None:
        """Return at once."""
        self._check_open()

    def close(self) -> None:
        """Refuse all later calls with ClosedError."""
        self.is_closed = True

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedError(CLOSED)

    def _perform(self, request: Request) -> Any:
        self.meter.record(request, self.world, 0, 0, 0, 0)
        return request.answer_alone()
