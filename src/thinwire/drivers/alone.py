"""A world of one with the face of a driver, for scripts that may run without any process group."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from ..core import ClosedError, Program, Request, World, drive
from .comm_thread import CLOSED
from .meter import Meter

T = TypeVar("T")


class Alone:
    """Answers every request with what it asked; counts what would have been handed over."""

    clock = None  # runs repeat

    def __init__(self) -> None:
        self.world, self.meter = World(0, 1), Meter()
        self.is_closed = False

    @torch.no_grad()
    def run(self, program: Program[T]) -> T:
        self._check_open()
        return drive(program, self._perform)

    def submit(self, program: Program[T], ahead: bool = False, after: Future[Any] | None = None) -> Future[T]:
        """Done at once: there is no other rank to wait for."""
        self._check_open()
        done: Future[T] = Future()
        try:
            if after is not None and (failure := after.exception()) is not None:
                raise failure
            done.set_result(self.run(program))
        except BaseException as error:
            done.set_exception(error)
        return done

    def count_with(self, meter: Meter) -> Meter:
        before, self.meter = self.meter, meter
        return before

    def barrier(self) -> None:
        self._check_open()

    def close(self) -> None:
        self.is_closed = True

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedError(CLOSED)

    def _perform(self, request: Request) -> Any:
        self.meter.record(request, self.world, 0, 0, 0, 0)
        return request.answer_alone()
