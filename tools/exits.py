"""Test how training processes exit without detach() or destroy_process_group(): none may end by a signal of its own.

Each run is two ranks (gloo, DDP, `attach`) forked from a process that has imported torch already, so that a run takes a
fraction of a second; each child ends through the interpreter's own shutdown, which is what is tested. Every rank keeps
its own stderr, with `faulthandler`. `make exits` runs all kinds; a test runs a few.

    python tools/exits.py --idle 200 --plain 100 --interrupt-all 30 --interrupt-one 30 --error 30 --silent 5
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RANKS = 2
SLOWEST_EXIT_S = 60.0  # a run that takes longer hangs

KINDS = {
    "idle": "ends after a few steps, communication threads at idle priority in the last one",
    "plain": "ends after a few steps, without detach or destroy_process_group",
    "interrupt_all": "Ctrl-C to both ranks in the middle of training",
    "interrupt_one": "Ctrl-C to one rank; the other loses its peer",
    "error": "an exception on one rank; the other loses its peer",
    "silent": "ends while its thread waits for a stopped peer",
}


@dataclass
class Rank:
    """A forked child and its files."""

    pid: int
    folder: Path
    status: int | None = None

    def poll(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for kind, text in KINDS.items():
        parser.add_argument(f"--{kind.replace('_', '-')}", type=int, default=0, metavar="RUNS", help=text)
    parser.add_argument("--jobs", type=int, default=4, help="number of runs in parallel (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the times at which signals are sent (default: 0)")
    options = parser.parse_args()
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    import_all()
    runs = [(kind, number) for kind in KINDS for number in range(getattr(options, kind))]
    bad, began = 0, time.monotonic()
    slowest: Counter[str] = Counter()
    endings: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    folder = Path(tempfile.mkdtemp(prefix="thinwire-exits-"))  # not as a context: forked ranks would end it, too
    open_runs: list[Run] = []
    waiting = list(reversed(runs))
    while waiting or open_runs:
        while waiting and len(open_runs) < options.jobs:
            kind, number = waiting.pop()
            open_runs.append(Run(kind, folder / f"{kind}{number}", random.Random(f"{options.seed} {kind} {number}")))
        for run in [run for run in open_runs if run.advance()]:
            open_runs.remove(run)
            slowest[run.kind] = max(slowest[run.kind], run.seconds)
            endings[run.kind][run.ending()] += 1
            if fault := run.fault():
                bad += 1
                print(f"{run.kind} {run.folder.name}: {fault}\n{run.logs()}", flush=True)
            shutil.rmtree(run.folder)
        time.sleep(0.005)
    shutil.rmtree(folder)
    for kind, counts in endings.items():
        if counts:
            text = ", ".join(f"{count} × {ending}" for ending, count in counts.most_common())
            print(f"{kind:14} {sum(counts.values()):4} runs, slowest {slowest[kind]:.1f} s; exit codes {text}")
    print(f"{len(runs)} runs, {bad} at fault, in {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


def import_all() -> None:
    """Import everything once, before the first fork; no thread may run then."""
    import torch
    import torch._dynamo  # as DDP does it, in two seconds
    import torch.distributed
    from torch.nn.parallel import DistributedDataParallel  # noqa: F401

    import thinwire

    torch.set_num_threads(1)
    thinwire.attach, thinwire.TorchDist, thinwire.parse  # noqa: B018 (imported when first named)
    assert threading.active_count() == 1
    gc.freeze()  # otherwise the first collection of every child would copy all of it


class Run:
    """One run of two ranks, polled without blocking."""

    def __init__(self, kind: str, folder: Path, chance: random.Random) -> None:
        self.kind, self.folder, self.began = kind, folder, time.monotonic()
        self.seconds = 0.0
        self.hung = False
        self.delay_s = chance.uniform(0.0, 0.05)
        self.pending: Callable[[], None] | None = self.interfere if "interrupt" in kind else None
        folder.mkdir()
        self.ranks = [self.start(rank) for rank in range(RANKS)]

    def start(self, rank: int) -> Rank:
        folder = self.folder / str(rank)
        folder.mkdir()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return Rank(pid, folder)
        descriptor = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 2)
        os.dup2(descriptor, 1)
        faulthandler.enable()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        train(rank, self.folder, self.kind)
        sys.exit(0)

    def advance(self) -> bool:
        """Whether all ranks have ended."""
        if self.pending and all((rank.folder / "steps").exists() for rank in self.ranks):
            time.sleep(self.delay_s)
            self.pending()
            self.pending = None
        done = [rank.poll() for rank in self.ranks]
        self.seconds = time.monotonic() - self.began
        if self.kind == "silent" and done[0] and not done[1]:
            os.kill(self.ranks[1].pid, signal.SIGKILL)  # it was stopped; only rank 0 is examined
        elif not all(done) and self.seconds > SLOWEST_EXIT_S:
            self.hung = True
            for rank in self.ranks:
                if rank.status is None:
                    os.kill(rank.pid, signal.SIGABRT)  # faulthandler prints its stack
        return all(done)

    def interfere(self) -> None:
        for rank in self.ranks if self.kind == "interrupt_all" else self.ranks[:1]:
            os.kill(rank.pid, signal.SIGINT)

    def examined_ranks(self) -> list[Rank]:
        return self.ranks[:1] if self.kind == "silent" else self.ranks

    def ending(self) -> str:
        return "/".join(str(rank.status) for rank in self.examined_ranks())

    def fault(self) -> str:
        """What is wrong with the exit, or ""."""
        if self.hung:
            return f"did not end within {SLOWEST_EXIT_S:.0f} s"
        allowed = {0} if self.kind in ("idle", "plain", "silent") else {0, 1, -signal.SIGINT}
        if any(rank.status not in allowed for rank in self.examined_ranks()):
            return f"exit codes {self.ending()}"
        return "" if all("Fatal" not in rank.stderr for rank in self.examined_ranks()) else "a fatal error on stderr"

    def logs(self) -> str:
        return "\n".join(
            f"  rank {r}: " + rank.stderr[-3000:].replace("\n", "\n  ") for r, rank in enumerate(self.ranks)
        )


def train(rank: int, folder: Path, kind: str) -> None:
    """A user's script: a DDP model, `attach`, some steps, and no cleanup."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import thinwire

    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    model = DistributedDataParallel(net, bucket_cap_mb=0.01)
    handle = thinwire.attach(model, "ef(topk(density=0.1))")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    last = 10_000_000 if "interrupt" in kind else random.randrange(3, 9) if kind == "error" else 5
    for step in range(last):
        if kind == "idle" and step == last - 1:
            make_threads_idle()
        optimizer.zero_grad()
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()
        if step == 3:
            (folder / str(rank) / "steps").touch()
        if kind == "error" and rank == 0 and step == 2:
            raise ZeroDivisionError("this rank fails")
    if kind == "silent":
        wait_for_stopped_peer(rank, handle.driver)
    # no detach(), no destroy_process_group()


def make_threads_idle() -> None:
    """Give thinwire's threads idle priority, so that they are scheduled at the worst moment."""
    for task in Path("/proc/self/task").iterdir():
        if "thinwire" in (name := (task / "comm").read_text()) or "thinwire" in thread_name(int(task.name), name):
            os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))


def thread_name(native_id: int, name: str) -> str:
    """The name of a thread; Python 3.11 does not pass it to the system."""
    return next((t.name for t in threading.enumerate() if t.native_id == native_id), name)


def wait_for_stopped_peer(rank: int, driver: Any) -> None:
    """Rank 1 stops; rank 0 submits a request and ends while its thread waits for the answer."""
    import torch

    from thinwire.core import AllReduce, Op, reduce_labels

    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    ones = torch.ones(4)

    def program() -> Any:
        return (yield AllReduce(ones, Op.SUM, reduce_labels("", ones, "test")))

    driver.submit(program())
    time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
