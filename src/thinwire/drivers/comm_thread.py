"""One thread that does jobs one after another, in the order they were given.

No such thread may outlive the interpreter. A daemon thread that comes back for the GIL while Python shuts down is ended
by `pthread_exit` (Python 3.11), and inside torch's C++ that terminates the process by SIGABRT. So all of them are ended
and joined `atexit`; one that waits for a silent peer is woken by hanging up on it.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from ..core import ClosedError

T = TypeVar("T")
_Jobs = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]
log = logging.getLogger("thinwire")

CLOSED = "this driver is closed and exchanges nothing any more; attach again, or make a new driver"
FINISH_S = 1.0  # at exit: time for the job at hand to end by itself, before the connections are closed
GIVE_UP_S = 10.0  # and after that; only a job that computes for longer is left behind


class _Running(NamedTuple):
    jobs: _Jobs
    ending: threading.Event  # set when the interpreter ends: jobs that were not begun are not begun any more
    hang_up: weakref.WeakMethod[Callable[[], None]] | None  # weak: a thread that ends must not end connections with it


_running: dict[threading.Thread, _Running] = {}  # every thread that has not ended yet


class CommThread:
    """All collectives of a group are issued here, so their order is the order of submission on every rank.

    The thread ends with `close()`, when its owner is gone, or when the interpreter ends. hang_up: wakes a job that
    waits for a peer, by making its wait fail; called at exit only, if its owner still lives.
    """

    def __init__(self, name: str = "thinwire-comm", hang_up: Callable[[], None] | None = None) -> None:
        self._jobs: _Jobs = queue.SimpleQueue()
        self._lock = threading.Lock()  # nothing is queued behind the end
        self._closed = False
        ending = threading.Event()
        self._thread = threading.Thread(target=_work, args=(self._jobs, ending), name=name, daemon=True)
        _running[self._thread] = _Running(self._jobs, ending, weakref.WeakMethod(hang_up) if hang_up else None)
        self._thread.start()
        weakref.finalize(self, self._jobs.put, None)

    def submit(self, job: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed or not self._thread.is_alive():
                raise ClosedError(CLOSED)
            self._jobs.put((job, future))
        return future

    @property
    def is_closed(self) -> bool:
        return self._closed or not self._thread.is_alive()

    def check_open(self) -> None:
        if self.is_closed:
            raise ClosedError(CLOSED)

    def close(self) -> None:
        """Finish what was submitted, then end. Closing twice does no harm."""
        with self._lock:
            self._closed = True
            self._jobs.put(None)
        self._thread.join()


def _work(jobs: _Jobs, ending: threading.Event) -> None:
    try:
        while (entry := jobs.get()) is not None:
            job, future = entry
            try:
                if ending.is_set():
                    raise ClosedError("the interpreter is ending; this exchange was not begun")
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
            del entry, job, future  # else the last job would be kept alive, and with it its owner
    finally:
        _running.pop(threading.current_thread(), None)


@atexit.register
def _end_all() -> None:
    """End and join every thread before the interpreter shuts down. Ctrl-C does not cut this short."""
    threads = dict(_running)
    for thread in threads.values():
        thread.ending.set()
        thread.jobs.put(None)
    if not _join(list(threads), FINISH_S):
        for hang_up in [thread.hang_up() for thread in threads.values() if thread.hang_up is not None]:
            if hang_up is not None:
                with suppress(Exception):
                    hang_up()
        left = [thread for thread in threads if thread.is_alive()]
        if not _join(left, GIVE_UP_S):
            log.warning("%s did not end within %g s of exit", ", ".join(t.name for t in left), GIVE_UP_S)


def _join(threads: list[threading.Thread], within_s: float) -> bool:
    """Whether all of them have ended in time."""
    deadline = time.monotonic() + within_s
    while (alive := [thread for thread in threads if thread.is_alive()]) and time.monotonic() < deadline:
        with suppress(KeyboardInterrupt):
            alive[0].join(max(0.0, deadline - time.monotonic()))
    return not alive
