"""The number of threads of the C kernels: as many as torch uses, at most the limit of the calling thread.

Communication threads have a limit of one, because the backward pass uses the other cores. While the thread that runs
backward waits for them, it lends them its cores.
Results have the same bits for any number. Threads are started for tensors of 4 MB and more; see native/threads.c.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_UNLIMITED = 1 << 30
_DEFAULT_GRAIN = 0


class _Calling(threading.local):
    """What holds for the calling thread."""

    def __init__(self) -> None:
        self.max_threads = _UNLIMITED
        self.applied: tuple[ctypes.CDLL | None, int] = None, 1  # the last call of tw_set_threads


_calling = _Calling()
_lending = 0  # threads that wait inside `lend_cores`
_lending_lock = threading.Lock()


def num_threads() -> int:
    """The number of threads that kernels called by this thread use."""
    return torch.get_num_threads() if _lending else min(_calling.max_threads, torch.get_num_threads())


@contextmanager
def lend_cores() -> Iterator[None]:
    """Limits do not hold while the calling thread waits inside: its cores are idle."""
    global _lending
    with _lending_lock:
        _lending += 1
    try:
        yield
    finally:
        with _lending_lock:
            _lending -= 1


@contextmanager
def limit_threads(max_threads: int) -> Iterator[None]:
    """Kernels called by this thread use at most so many threads; other threads are not affected."""
    if max_threads < 1:
        raise ValueError(f"limit_threads: max_threads must be at least 1, got {max_threads}")
    before = _calling.max_threads
    _calling.max_threads = max_threads
    try:
        yield
    finally:
        _calling.max_threads = before


def apply_num_threads(library: ctypes.CDLL) -> ctypes.CDLL:
    """Make the next kernels of this thread use `num_threads()`; returns the library."""
    calling = _calling
    wanted = 1 if calling.max_threads == 1 and not _lending else num_threads()
    told, count = calling.applied
    if count != wanted or told is not library:  # else not again: this runs for every kernel of every layer
        library.tw_set_threads(wanted, _DEFAULT_GRAIN)
        calling.applied = library, wanted
    return library


def forget_num_threads() -> None:
    """Call C again at the next kernel of this thread, after something else has called tw_set_threads."""
    _calling.applied = None, 1
