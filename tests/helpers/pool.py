"""One set of worker processes for the whole test session: started once, then a test costs milliseconds.

`pool.run(size, job, *args)` runs `job(driver, *args)` on ranks 0 ... size-1 and gives their results. Jobs live in
jobs.py, because workers import them by name.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

SIZE = 4
PATIENCE = float(os.environ.get("THINWIRE_TEST_PATIENCE", "1"))  # a factor on time limits, for busy machines


class RankFailed(Exception):
    """Some rank raised; `errors` has each rank's (class name, text) or None."""

    def __init__(self, errors: list[tuple[str, str] | None], text: str) -> None:
        super().__init__(text)
        self.errors = errors


class Pool:
    def __init__(self) -> None:
        self.workers: list[tuple[Connection, BaseProcess]] = []

    def run(
        self, size: int, job: Callable[..., Any], *args: Any, within_s: float = 60.0, **driver_options: Any
    ) -> list[Any]:
        if not self.workers:
            self._start()
        for pipe, _ in self.workers[:size]:
            pipe.send((size, job, args, driver_options))
        within_s *= PATIENCE
        deadline = time.monotonic() + within_s
        answers = []
        for pipe, _ in self.workers[:size]:
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                words = self._last_words()
                self.close()
                raise TimeoutError(f"{job.__name__} did not end on all of {size} ranks in {within_s} s\n{words}")
            try:
                answers.append(pipe.recv())
            except (EOFError, ConnectionError):
                patience = time.monotonic() + 2.0  # of all together; ranks without a job never end by themselves
                for _, process in self.workers[:size]:
                    process.join(max(0.0, patience - time.monotonic()))
                codes = [process.exitcode for _, process in self.workers]
                words = self._last_words()
                self.close()
                raise RankFailed(
                    [None] * size, f"a rank ended in {job.__name__}; exit codes {codes}\n{words}"
                ) from None
        errors = [error for _, error in answers]
        if any(errors):
            if any(error is None or error[0] != "ProtocolError" for error in errors):
                self.close()  # ranks that agree about their disagreement may go on; others are out of step
            raise RankFailed([e and e[:2] for e in errors], "\n".join(e[2] for e in errors if e))
        return [result for result, _ in answers]

    def close(self) -> None:
        for pipe, process in self.workers:
            pipe.close()
            process.kill()
            process.join()
        self.workers = []

    def _last_words(self) -> str:
        """What each rank wrote to its own stderr."""
        return "\n".join(
            f"rank {r}: {(self.folder / f'{r}.err').read_text()[-3000:]}" for r in range(len(self.workers))
        )

    def _start(self) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded there
        context = multiprocessing.get_context("forkserver")  # torch is loaded once, not for every pool and rank
        context.set_forkserver_preload(["torch", "torch.distributed", "thinwire.api"])
        folder = tempfile.mkdtemp(prefix="thinwire-pool-")
        self.folder = Path(folder)
        for rank in range(SIZE):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, folder, theirs), daemon=True)
            process.start()
            theirs.close()
            self.workers.append((ours, process))


def _serve(rank: int, folder: str, pipe: Connection) -> None:
    errors = (Path(folder) / f"{rank}.err").open("w", buffering=1)
    os.dup2(errors.fileno(), 2)  # each rank's own, whatever pytest does with ours
    sys.stderr = errors
    faulthandler.enable(errors)
    import torch
    import torch.distributed as dist

    from thinwire import TorchDist
    from thinwire.drivers.processes import loopback_device

    os.environ["GLOO_SOCKET_IFNAME"] = loopback_device()
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE, timeout=timedelta(seconds=60))
    groups = {size: dist.new_group(list(range(size))) for size in range(1, SIZE + 1)}
    while True:
        try:
            size, job, args, options = pipe.recv()
        except EOFError:
            return
        try:
            with TorchDist(groups[size], **{"timeout_s": 20.0, **options}) as driver:
                pipe.send((job(driver, *args), None))
        except BaseException as error:
            pipe.send((None, (type(error).__name__, str(error), traceback.format_exc())))
