"""Run a function on several rank processes of this machine. They rendezvous through a file, so no port is needed.

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

OnProgress = Callable[[Any], None]


def loopback_device() -> str:
    """Name of the loopback network device: lo on Linux, lo0 on macOS and the BSDs."""
    return "lo0" if sys.platform.startswith(("darwin", "freebsd", "openbsd", "netbsd", "dragonfly")) else "lo"


# Defaults for the environment of rank processes. glibc returns large freed blocks to the system and faults them in
# page by page again: a GPT step with a large vocabulary takes half as long if it keeps them.
ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": loopback_device(), "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
}  # fmt: skip


class Stopped(Exception):
    """`stop_event` of `run_ranks` was set, and the rank processes were killed."""


def run_ranks(
    size: int,
    job: str,
    argument: Any,
    *,
    on_progress: OnProgress | None = None,
    timeout_s: float = 600.0,
    command_prefixes: Sequence[Sequence[str]] | None = None,
    stop_event: threading.Event | None = None,
) -> list[Any]:
    """Run `job(driver, argument, report)` on `size` processes.

    Args:
        size: number of ranks.
        job: "module:function".
        argument: passed to the job as JSON.
        on_progress: called with each value that rank 0 passes to `report`.
        timeout_s: for all ranks to finish.
        command_prefixes: words before each rank's command, for example to run it in a network namespace.
        stop_event: once another thread sets it, all ranks are killed and Stopped is raised.

    Returns:
        The jobs' results, in rank order.

    Raises:
        PeerLostError: a rank failed or time ran out; all ranks are killed. The text names the rank that failed first
        and ends with its error.
    """
    prefixes = command_prefixes or [()] * size
    with tempfile.TemporaryDirectory(prefix="thinwire-") as folder:
        orders = [{"rank": r, "size": size, "folder": folder, "job": job, "argument": argument} for r in range(size)]
        ranks = [
            _RankProcess(order, on_progress if order["rank"] == 0 else None, Path(folder), prefix)
            for order, prefix in zip(orders, prefixes, strict=True)
        ]
        try:
            _wait_for_all(ranks, time.monotonic() + timeout_s, stop_event or threading.Event())
            return [rank.result for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()


class _RankProcess:
    def __init__(
        self, order: dict[str, Any], on_progress: OnProgress | None, folder: Path, prefix: Sequence[str]
    ) -> None:
        self.rank: int = order["rank"]
        self.result: Any = None
        self.error: Exception | None = None  # raised by on_progress
        self._stderr = folder / f"rank{self.rank}.err"
        file = folder / f"rank{self.rank}.json"  # some orders are longer than a command line may be
        file.write_text(json.dumps(order))
        environment = ENVIRONMENT | dict(os.environ)
        with self._stderr.open("w") as stderr:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "thinwire.drivers.processes", str(file)],
                stdout=subprocess.PIPE, stderr=stderr, stdin=subprocess.DEVNULL, text=True, env=environment,
            )  # fmt: skip
        assert self.process.stdout is not None
        self.reader = threading.Thread(target=self._read, args=(self.process.stdout, on_progress), daemon=True)
        self.reader.start()

    def _read(self, lines: TextIO, on_progress: OnProgress | None) -> None:
        for line in lines:
            kind, _, text = line.partition(" ")
            if kind == "result":
                self.result = json.loads(text)
            elif kind == "progress" and on_progress is not None and self.error is None:
                try:
                    on_progress(json.loads(text))
                except Exception as error:  # raised by _wait_for_all, in the caller's thread
                    self.error = error

    def log(self) -> str:
        """Everything that the process wrote to standard error."""
        return self._stderr.read_text(errors="replace").strip()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()


def _wait_for_all(ranks: Sequence[_RankProcess], deadline: float, stop_event: threading.Event) -> None:
    running = list(ranks)
    while running:
        if stop_event.is_set():
            raise Stopped
        _raise_errors(ranks)
        for rank in running:
            if rank.process.poll() not in (None, 0):
                failed = _find_cause(ranks) or rank
                log = failed.log()
                lost = PeerLostError(f"rank {failed.rank} of {len(ranks)} failed:\n{last_lines(log)}")
                lost.log = log
                raise lost
        running = [rank for rank in running if rank.process.poll() is None]
        if running and time.monotonic() > deadline:
            raise PeerLostError(f"ranks {[r.rank for r in running]} of {len(ranks)} did not finish in time")
        time.sleep(0.01)
    for rank in ranks:
        rank.reader.join()
    _raise_errors(ranks)


def _raise_errors(ranks: Sequence[_RankProcess]) -> None:
    for rank in ranks:
        if rank.error is not None:
            raise rank.error


def _find_cause(ranks: Sequence[_RankProcess], timeout_s: float = 5.0) -> _RankProcess | None:
    """The rank that failed by itself. The first to exit may be one that lost it, while it still writes its log."""
    deadline = time.monotonic() + timeout_s
    while True:
        failed = [rank for rank in ranks if rank.process.poll() not in (None, 0)]
        cause = next((rank for rank in failed if "PeerLostError" not in last_lines(rank.log())), None)
        all_ended = all(rank.process.poll() is not None for rank in ranks)
        if cause or all_ended or time.monotonic() > deadline:
            return cause
        time.sleep(0.01)


def last_lines(log: str, max_characters: int = 2000) -> str:
    """The last complete lines of a log, up to `max_characters`, and at least one."""
    lines: list[str] = []
    left = max_characters
    for line in reversed(log.splitlines()):
        left -= len(line) + 1
        if lines and left < 0:
            lines.append("...")
            break
        lines.append(line)
    return "\n".join(reversed(lines))


_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch's prefix of each line of a traceback
_TRACEBACK = "Traceback (most recent call last):"
_MAX_ERROR_LINES = 20


def error_text(log: str) -> str:
    """The error of the last traceback in a rank's log; without a traceback, the last lines of the log."""
    head, marker, trace = _RANK.sub("", log).rpartition(_TRACEBACK)
    lines = trace.splitlines()[1:] if marker else []
    begin = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), None)
    if begin is None:
        return last_lines(head + marker + trace)
    end = begin + _MAX_ERROR_LINES
    return "\n".join(lines[begin:end] + ["..."] * (len(lines) > end))


def _run_rank(order: dict[str, Any]) -> None:
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
        result = job(driver, order["argument"], lambda progress: _write_line("progress", progress))
        _write_line("result", result)
    dist.destroy_process_group()


def _write_line(kind: str, value: Any) -> None:
    assert sys.__stdout__ is not None
    print(kind, json.dumps(value), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    _run_rank(json.loads(Path(sys.argv[1]).read_text()))
