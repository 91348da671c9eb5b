"""`thinwire bench kernels --threads N`: kernels on N threads against one.

Seconds of a clock. Each repetition runs the kernel on one thread, then on N; the quotient is the median over
repetitions, in which most noise of the machine cancels. The first rows are memory alone: what it gives to N threads
bounds all kernels that compute little.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from thinwire.kernels import dispatch, native

from .kernels import Work, make_cases


@dataclass(frozen=True)
class ThreadsRow:
    """Medians of one kernel in milliseconds, and of the quotients of both."""

    kernel: str
    one_ms: float
    several_ms: float
    quotient: float


def measure_threads(mb: float, num_threads: int, repetitions: int = 9) -> list[ThreadsRow]:
    """Time every kernel on one thread and on `num_threads`."""
    numel = max(1, int(mb * 1e6 / 4))
    tensor = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    return [_time_both(name, work, num_threads, repetitions) for name, work in _all_cases(tensor)]


def _all_cases(tensor: Tensor) -> Iterator[tuple[str, Work]]:
    there = torch.empty_like(tensor)
    yield "torch: copy", partial(there.copy_, tensor)
    yield "torch: fill with zeros", there.zero_
    yield "add, saturated", partial(dispatch.add_saturated, tensor, there)
    yield from make_cases(dispatch, tensor)


def _time_both(name: str, work: Work, num_threads: int, repetitions: int) -> ThreadsRow:
    one, several = [], []
    with _torch_threads(1):
        work()  # allocates
    for _ in range(repetitions):
        one.append(_time(work, 1))
        several.append(_time(work, num_threads))
    quotients = [b / a for a, b in zip(one, several, strict=True)]
    return ThreadsRow(name, *(statistics.median(ms) for ms in (one, several, quotients)))


def _time(work: Work, num_threads: int) -> float:
    with _torch_threads(num_threads):
        start = time.perf_counter()
        work()
        return 1e3 * max(time.perf_counter() - start, 1e-9)


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def write_threads_json(file: Path, mb: float, num_threads: int, rows: Sequence[ThreadsRow]) -> None:
    """Write the table to a file."""
    head = {"mb": mb, "threads": num_threads, "kernels": native.describe_kernels(), "unit": "ms"}
    file.write_text(json.dumps(head | {"rows": [asdict(row) for row in rows]}, indent=1) + "\n", encoding="utf-8")
