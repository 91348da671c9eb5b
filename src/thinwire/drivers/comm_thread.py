"""A communication thread: runs submitted jobs one at a time, in the order of submission.

No such thread may outlive the interpreter. A daemon thread that requests the GIL while Python shuts down is ended by
`pthread_exit` (Python 3.11), and inside torch's C++ that terminates the process by SIGABRT. So all threads are ended
and joined `atexit`; a thread that waits for a silent peer is woken by closing its connections.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from ..core import ClosedError
from ..core.logs import get_logger
from ..kernels.threads import limit_threads

T = TypeVar("T")
_Jobs = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]
log = get_logger(__name__)

CLOSED = "this driver is closed; attach again, or make a new driver"
FINISH_S = 1.0  # at exit: time for the current job to finish, before the connections are closed
GIVE_UP_S = 10.0  # at exit: time for the thread to end after that; only a job that computes for longer is abandoned


class _ThreadRecord(NamedTuple):
    jobs: _Jobs
    ending: threading.Event  # set when the interpreter ends: jobs that have not started are not started any more
    disconnect: weakref.WeakMethod[Callable[[], None]] | None  # weak: the record must not keep connections alive


_running: dict[threading.Thread, _ThreadRecord] = {}  # every thread that has not ended yet


class CommThread:
    """Issues all collectives of a group, so that their order is the order of submission on every rank.

    The thread ends with `close()`, when its owner is garbage-collected, or when the interpreter ends.

    Args:
        name: of the thread.
        disconnect: makes the wait of a job for a peer fail; called at exit only, if its owner still exists.
    """

    def __init__(self, name: str = "thinwire-comm", disconnect: Callable[[], None] | None = None) -> None:
        self._jobs: _Jobs = queue.SimpleQueue()
        self._lock = threading.Lock()  # so that nothing is queued after the end mark
        self._closed = False
        ending = threading.Event()
        self._thread = threading.Thread(target=_work, args=(self._jobs, ending), name=name, daemon=True)
        weak = weakref.WeakMethod(disconnect) if disconnect else None
        _running[self._thread] = _ThreadRecord(self._jobs, ending, weak)
        self._thread.start()
        weakref.finalize(self, self._jobs.put, None)

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Queue a job; ClosedError after `close()`."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed or not self._thread.is_alive():
                raise ClosedError(CLOSED)
            self._jobs.put((job, future))
        return future

    @property
    def is_closed(self) -> bool:
        """Whether no further jobs are accepted."""
        return self._closed or not self._thread.is_alive()

    def check_open(self) -> None:
        """Raise ClosedError if no further jobs are accepted."""
        if self.is_closed:
            raise ClosedError(CLOSED)

    def close(self) -> None:
        """Finish the submitted jobs, then end the thread. A second call has no effect."""
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
                    raise ClosedError("the interpreter is exiting; this exchange was not started")
                with limit_threads(1):  # backward needs the other cores
                    future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
            del entry, job, future  # else the last job would be kept alive, and with it its owner
    finally:
        _running.pop(threading.current_thread(), None)


@atexit.register
def _end_all() -> None:
    """End and join every thread before the interpreter shuts down, even if Ctrl-C is pressed meanwhile."""
    threads = dict(_running)
    for record in threads.values():
        record.ending.set()
        record.jobs.put(None)
    if not _join(list(threads), FINISH_S):
        for disconnect in [record.disconnect() for record in threads.values() if record.disconnect is not None]:
            if disconnect is not None:
                with suppress(Exception):
                    disconnect()
        left = [thread for thread in threads if thread.is_alive()]
        if not _join(left, GIVE_UP_S):
            log.warning("%s did not end within %g s of exit", ", ".join(t.name for t in left), GIVE_UP_S)


def _join(threads: list[threading.Thread], within_s: float) -> bool:
    """Whether all threads ended within this time."""
    deadline = time.monotonic() + within_s
    while (alive := [thread for thread in threads if thread.is_alive()]) and time.monotonic() < deadline:
        with suppress(KeyboardInterrupt):
            alive[0].join(max(0.0, deadline - time.monotonic()))
    return not alive
