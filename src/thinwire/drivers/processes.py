"""Real worker processes on this machine: started, watched, ended. They meet through a file, so no port is needed.

A job is named "module:function"; its argument, progress and result are JSON, so nothing is pickled.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from ..core import PeerLostError

Tell = Callable[[Any], None]


def loopback_device() -> str:
    """What this system calls its loopback device: lo on Linux, lo0 on macOS and the BSDs."""
    return "lo0" if sys.platform.startswith(("darwin", "freebsd", "openbsd", "netbsd", "dragonfly")) else "lo"


# What workers have if their parent has nothing else. glibc gives large memory back to the system when it is freed and
# gets it page by page again: a GPT's step with a large vocabulary takes half as long if it keeps it.
ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": loopback_device(), "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
}  # fmt: skip


class Stopped(Exception):
    """Workers were ended because somebody wished so."""


def run_ranks(
    size: int,
    job: str,
    argument: Any,
    *,
    tell: Tell | None = None,
    timeout_s: float = 600.0,
    starts: Sequence[Sequence[str]] | None = None,
    stop: threading.Event | None = None,
) -> list[Any]:
    """Results of `job(driver, argument, tell)` on `size` processes, in rank order.

    What rank 0 tells on its way reaches `tell`. If a rank fails or time runs out, all are ended; the error names the
    rank at fault and ends with its own error text. starts: how each rank's command begins, to run it somewhere else.
    stop: once it is set, by another thread, all are ended, too, and Stopped is raised.
    """
    starts = starts or [()] * size
    with tempfile.TemporaryDirectory(prefix="thinwire-") as folder:
        orders = [{"rank": r, "size": size, "folder": folder, "job": job, "argument": argument} for r in range(size)]
        workers = [
            _Worker(order, tell if order["rank"] == 0 else None, Path(folder), start)
            for order, start in zip(orders, starts, strict=True)
        ]
        try:
            _watch(workers, time.monotonic() + timeout_s, stop or threading.Event())
            return [worker.result for worker in workers]
        finally:
            for worker in workers:
                worker.end()


class _Worker:
    def __init__(self, order: dict[str, Any], tell: Tell | None, folder: Path, start: Sequence[str]) -> None:
        self.rank: int = order["rank"]
        self.result: Any = None
        self.error: Exception | None = None  # of whoever was told
        self._errors = folder / f"rank{self.rank}.err"
        place = folder / f"rank{self.rank}.json"  # a command line may not be as long as some orders
        place.write_text(json.dumps(order))
        environment = ENVIRONMENT | dict(os.environ)
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*start, sys.executable, "-m", "thinwire.drivers.processes", str(place)],
                stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True, env=environment,
            )  # fmt: skip
        assert self.process.stdout is not None
        self.reader = threading.Thread(target=self._read, args=(self.process.stdout, tell), daemon=True)
        self.reader.start()

    def _read(self, lines: TextIO, tell: Tell | None) -> None:
        for line in lines:
            kind, _, text = line.partition(" ")
            if kind == "result":
                self.result = json.loads(text)
            elif kind == "tell" and tell is not None and self.error is None:
                try:
                    tell(json.loads(text))
                except Exception as error:  # raised by those who wait: this thread has nobody to tell
                    self.error = error

    def log(self) -> str:
        """All that it wrote to standard error."""
        return self._errors.read_text(errors="replace").strip()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()


def _watch(workers: Sequence[_Worker], deadline: float, stop: threading.Event) -> None:
    running = list(workers)
    while running:
        if stop.is_set():
            raise Stopped
        _raise_errors(workers)
        for worker in running:
            if worker.process.poll() not in (None, 0):
                blamed = _at_fault(workers) or worker
                log = blamed.log()
                lost = PeerLostError(f"rank {blamed.rank} of {len(workers)} failed:\n{last_lines(log)}")
                lost.log = log
                raise lost
        running = [worker for worker in running if worker.process.poll() is None]
        if running and time.monotonic() > deadline:
            raise PeerLostError(f"ranks {[w.rank for w in running]} of {len(workers)} did not finish in time")
        time.sleep(0.01)
    for worker in workers:
        worker.reader.join()
    _raise_errors(workers)


def _raise_errors(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        if worker.error is not None:
            raise worker.error


def _at_fault(workers: Sequence[_Worker], patience_s: float = 5.0) -> _Worker | None:
    """The rank that failed by itself: the first to end may be one that lost it, while that still writes last words."""
    deadline = time.monotonic() + patience_s
    while True:
        failed = [worker for worker in workers if worker.process.poll() not in (None, 0)]
        alone = next((worker for worker in failed if "PeerLostError" not in last_lines(worker.log())), None)
        ended = all(worker.process.poll() is not None for worker in workers)
        if alone or ended or time.monotonic() > deadline:
            return alone
        time.sleep(0.01)


def last_lines(log: str, most_characters: int = 2000) -> str:
    """The last lines of a log, whole ones: as many as there is room for, and one at the least."""
    lines: list[str] = []
    room = most_characters
    for line in reversed(log.splitlines()):
        room -= len(line) + 1
        if lines and room < 0:
            lines.append("...")
            break
        lines.append(line)
    return "\n".join(reversed(lines))


_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # what torch writes before each line of a traceback
_TRACEBACK = "Traceback (most recent call last):"
_MAX_ERROR_LINES = 20


def error_text(log: str) -> str:
    """What a rank died of: the error of its last traceback, in whole lines; without one, the last lines of its log."""
    head, found, trace = _RANK.sub("", log).rpartition(_TRACEBACK)
    lines = trace.splitlines()[1:] if found else []
    begin = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), None)
    if begin is None:
        return last_lines(head + found + trace)
    end = begin + _MAX_ERROR_LINES
    return "\n".join(lines[begin:end] + ["..."] * (len(lines) > end))


def _worker(order: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed import FileStore

    from .torch_dist import TorchDist

    torch.set_num_threads(1)
    store = FileStore(str(Path(order["folder"]) / "store"), order["size"])
    dist.init_process_group(
        "gloo", store=store, rank=order["rank"], world_size=order["size"], timeout=timedelta(minutes=2)
    )
    module, function = order["job"].split(":")
    job = getattr(importlib.import_module(module), function)
    with contextlib.redirect_stdout(sys.stderr), TorchDist(ordered=True) as driver:
        result = job(driver, order["argument"], lambda news: _say("tell", news))
        _say("result", result)
    dist.destroy_process_group()


def _say(kind: str, what: Any) -> None:
    assert sys.__stdout__ is not None
    print(kind, json.dumps(what), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    _worker(json.loads(Path(sys.argv[1]).read_text()))
