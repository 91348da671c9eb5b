"""One thread that does jobs one after another, in the order they were given."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_Jobs = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]


class CommThread:
    """All collectives of a group are issued here, so their order is the order of submission on every rank.

    The thread ends with `close()`, or when nobody can submit any more.
    """

    def __init__(self, name: str = "thinwire-comm") -> None:
        self._jobs: _Jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()
        weakref.finalize(self, self._jobs.put, None)

    def submit(self, job: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._jobs.put((job, future))
        return future

    def close(self) -> None:
        """Finish what was submitted, then end."""
        self._jobs.put(None)
        self._thread.join()


def _work(jobs: _Jobs) -> None:
    while (entry := jobs.get()) is not None:
        job, future = entry
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)
        del entry, job, future  # else the last job would be kept alive, and with it who gave it
