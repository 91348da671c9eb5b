"""Run one process per worker in a network, and end all of them when one fails."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from .cleanup import end_group
from .counters import Counts, read_counts
from .network import Network

GRACE_S = 3.0  # between SIGTERM and SIGKILL
_MAX_LOG_CHARS = 4000  # of a failed worker's output that are printed
# the worker starts when it reads a line, which is sent after the cleanup process knows its process group; if this
# process is killed before, it reads end-of-file and does not start
_WAIT_FOR_LINE = ("sh", "-c", 'read -r word && exec "$@" </dev/null', "sh")


@dataclass(frozen=True)
class WorkerExit:
    """How one worker ended. counts: of its interface; None if it shares the interface with others."""

    rank: int
    exit_code: int
    seconds: float
    counts: Counts | None


@dataclass(frozen=True)
class LaunchResult:
    """How all workers ended. exit_code: of the first worker that failed, else 0."""

    exit_code: int
    seconds: float
    workers: tuple[WorkerExit, ...]
    total: Counts | None


def make_environment(network: Network, rank: int) -> dict[str, str]:
    """Environment of a worker: the variables that `torchrun` sets, and the network device for gloo."""
    size, host = str(len(network.hosts)), network.hosts[rank]
    return {"OMP_NUM_THREADS": "1"} | dict(os.environ) | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": network.hosts[0].address, "MASTER_PORT": str(network.port),
        "GLOO_SOCKET_IFNAME": host.device,
    }  # fmt: skip


def run_workers(network: Network, command: Sequence[str]) -> LaunchResult:
    """Run a command on every worker until all have ended; if one fails, end the others.

    Rank 0 writes to this process's output; the output of the others is stored, and printed on stderr if the run fails.
    """
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(
            f"testbed run: the program {command[0]!r} was not found; example of a command: python train.py"
        )
    with ExitStack() as files:
        workers: list[_WorkerProcess] = []
        before, started = _counts(network), time.monotonic()
        try:
            for rank in range(len(network.hosts)):
                output = None if rank == 0 else files.enter_context(tempfile.TemporaryFile())
                workers.append(_WorkerProcess(network, rank, command, output))
            first = _wait(workers)
        finally:
            _end(workers)
        seconds, counts = (
            time.monotonic() - started,
            [a.since(b) for a, b in zip(_counts(network), before, strict=True)],
        )
        if first:
            _print_logs(workers)
    own = len(counts) == len(workers)
    ended = [WorkerExit(w.rank, w.exit_code, w.ended - started, counts[w.rank] if own else None) for w in workers]
    total = Counts(*map(sum, zip(*counts, strict=True))) if counts else None
    return LaunchResult(first, seconds, tuple(ended), total)


class _WorkerProcess:
    """One worker's process; output: file for its output, None for this process's own."""

    def __init__(self, network: Network, rank: int, command: Sequence[str], output: IO[bytes] | None) -> None:
        self.rank, self.output, self.ended = rank, output, 0.0
        self.code: int | None = None
        self._cleanup = network.cleanup
        self.process = subprocess.Popen(
            network.hosts[rank].wrap_command(*_WAIT_FOR_LINE, *command), env=make_environment(network, rank),
            stdin=subprocess.PIPE, stdout=output, stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        self._cleanup.watch(self.process.pid)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as word:
            word.write(b"\n")

    @property
    def exit_code(self) -> int:
        return 128 + signal.SIGKILL if self.code is None else self.code  # SIGKILL was sent and has no effect yet

    def has_ended(self) -> bool:
        if self.code is None and (code := self.process.poll()) is not None:
            self.code, self.ended = code if code >= 0 else 128 - code, time.monotonic()  # as a shell reports signals
            end_group(self.process.pid)  # its own children that still run
            self._cleanup.forget(self.process.pid)
        return self.code is not None


def _wait(workers: Sequence[_WorkerProcess]) -> int:
    """Wait until all have ended or one has failed; return the exit code of that one, or 0."""
    while True:
        ended = [worker for worker in workers if worker.has_ended()]
        if failed := [worker for worker in ended if worker.code]:
            _wait_for_exits(workers, 0.5)  # so that the others can print their errors
            return failed[0].code or 0
        if len(ended) == len(workers):
            return 0
        time.sleep(0.01)


def _end(workers: Sequence[_WorkerProcess]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for worker in workers:
            if not worker.has_ended():
                end_group(worker.process.pid, number)
        _wait_for_exits(workers, GRACE_S)


def _wait_for_exits(workers: Sequence[_WorkerProcess], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(worker.has_ended() for worker in workers):
        time.sleep(0.01)


def _print_logs(workers: Sequence[_WorkerProcess]) -> None:
    for worker in workers:
        if worker.output is not None:
            worker.output.seek(0)
            for line in worker.output.read().decode(errors="replace")[-_MAX_LOG_CHARS:].splitlines():
                print(f"[rank {worker.rank}] {line}", file=sys.stderr)


def _counts(network: Network) -> list[Counts]:
    """Counts of each device; workers in one namespace share one."""
    hosts = dict.fromkeys(network.hosts) if network.is_counted else {}
    return [read_counts(host.device, host.namespace) for host in hosts]
