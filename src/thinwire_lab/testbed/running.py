"""One process per worker in a network: started, watched, ended."""

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

from .counters import Counts, read_counts
from .guardian import end_group
from .network import Network

GRACE_S = 3.0  # between the wish and the order to end
_LAST_WORDS = 4000  # characters of a failed worker that are shown
# a worker begins when the guardian knows of it; were we killed before, it would read an end and begin nothing
_WHEN_TOLD = ("sh", "-c", 'read -r word && exec "$@" </dev/null', "sh")


@dataclass(frozen=True)
class Ended:
    """One worker's end; `counts` are of its interface, None where it shares one with others."""

    rank: int
    exit_code: int
    seconds: float
    counts: Counts | None


@dataclass(frozen=True)
class Outcome:
    """Of a whole run: the exit code of the first worker that failed, and what each did."""

    exit_code: int
    seconds: float
    workers: tuple[Ended, ...]
    total: Counts | None


def environment(network: Network, rank: int) -> dict[str, str]:
    """What `torchrun` would set, and the device that gloo is to use."""
    size, place = str(len(network.places)), network.places[rank]
    return {"OMP_NUM_THREADS": "1"} | dict(os.environ) | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": network.places[0].address, "MASTER_PORT": str(network.port),
        "GLOO_SOCKET_IFNAME": place.device,
    }  # fmt: skip


def run(network: Network, command: Sequence[str]) -> Outcome:
    """Run a command on every worker until all have ended; if one fails, all others are ended.

    Rank 0 speaks for itself; the others' words are kept, and shown on stderr if the run fails.
    """
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"no program is called {command[0]!r}; give what you would type, as: python train.py")
    with ExitStack() as files:
        workers: list[_Worker] = []
        before, started = _counts(network), time.monotonic()
        try:
            for rank in range(len(network.places)):
                words = None if rank == 0 else files.enter_context(tempfile.TemporaryFile())
                workers.append(_Worker(network, rank, command, words))
            first = _wait(workers)
        finally:
            _end(workers)
        seconds, counts = (
            time.monotonic() - started,
            [a.since(b) for a, b in zip(_counts(network), before, strict=True)],
        )
        if first:
            _show(workers)
    own = len(counts) == len(workers)
    ended = [Ended(w.rank, w.exit_code, w.ended - started, counts[w.rank] if own else None) for w in workers]
    total = Counts(*map(sum, zip(*counts, strict=True))) if counts else None
    return Outcome(first, seconds, tuple(ended), total)


class _Worker:
    def __init__(self, network: Network, rank: int, command: Sequence[str], words: IO[bytes] | None) -> None:
        self.rank, self.words, self.ended = rank, words, 0.0
        self.code: int | None = None
        self._guardian = network.guardian
        self.process = subprocess.Popen(
            network.places[rank].inside(*_WHEN_TOLD, *command), env=environment(network, rank), stdin=subprocess.PIPE,
            stdout=words, stderr=None if words is None else subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._guardian.watch(self.process.pid)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as word:
            word.write(b"\n")

    @property
    def exit_code(self) -> int:
        return 128 + signal.SIGKILL if self.code is None else self.code  # not even SIGKILL ended it yet

    def has_ended(self) -> bool:
        if self.code is None and (code := self.process.poll()) is not None:
            self.code, self.ended = code if code >= 0 else 128 - code, time.monotonic()  # as a shell tells signals
            end_group(self.process.pid)  # what it started and left
            self._guardian.forget(self.process.pid)
        return self.code is not None


def _wait(workers: Sequence[_Worker]) -> int:
    """Until all have ended or one has failed; that one's exit code."""
    while True:
        ended = [worker for worker in workers if worker.has_ended()]
        if failed := [worker for worker in ended if worker.code]:
            _leave_time(workers, 0.5)  # let the others say what they saw
            return failed[0].code or 0
        if len(ended) == len(workers):
            return 0
        time.sleep(0.01)


def _end(workers: Sequence[_Worker]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for worker in workers:
            if not worker.has_ended():
                end_group(worker.process.pid, number)
        _leave_time(workers, GRACE_S)


def _leave_time(workers: Sequence[_Worker], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(worker.has_ended() for worker in workers):
        time.sleep(0.01)


def _show(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        if worker.words is not None:
            worker.words.seek(0)
            for line in worker.words.read().decode(errors="replace")[-_LAST_WORDS:].splitlines():
                print(f"[rank {worker.rank}] {line}", file=sys.stderr)


def _counts(network: Network) -> list[Counts]:
    """One for each device: workers in one namespace share theirs."""
    places = dict.fromkeys(network.places) if network.counted else {}
    return [read_counts(place.device, place.namespace) for place in places]
