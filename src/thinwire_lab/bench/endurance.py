"""Repeat short DDP trainings with different numbers of buckets and count hangs, aborts, errors and diverged replicas.

`python -m thinwire_lab.bench.endurance [--runs 25] [--steps 50]`. A 3 MB MLP on two processes, a new model in every
run. A run that exceeds its deadline counts as a hang, a process ended by a signal as an abort; in the end replicas
are compared bit for bit. `--torch` does the same with torch's PowerSGD hook.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from thinwire.api import attach
from thinwire.core import PeerLostError
from thinwire.core.torch_private import count_buckets
from thinwire.drivers.processes import run_ranks
from thinwire.drivers.torch_dist import TorchDist
from thinwire.integrations.comparison import compare_weights

COMPOSITIONS = ("ef(powersgd(rank=4))", "ef(topk(density=0.01))")
TORCH = "torch's own powerSGD_hook"
CAPS_MB = {1: 100.0, 2: 1.37, 8: 0.32, 64: 0.0005}  # number of buckets -> DDP's bucket_cap_mb
WIDTH, DEPTH = 152, 32
HANG_MESSAGE = "this run hangs"
MAX_FAILURES = 3  # of one row; its other runs are then skipped


class DeepMLP(nn.Module):
    """A deep MLP with shortcuts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + 0.3 * torch.tanh(layer(x))
        return x


@dataclass
class EnduranceRow:
    """Counts of outcomes for one composition and one number of buckets."""

    composition: str
    wanted_buckets: int
    buckets: int = 0
    good: int = 0
    hangs: int = 0
    aborts: int = 0
    errors: int = 0
    differing: int = 0  # runs with different replicas at the end
    not_tried: int = 0
    seconds: float = 0.0
    last_log: str = ""

    @property
    def failures(self) -> int:
        return self.hangs + self.aborts + self.errors + self.differing


def run_trainings(driver: TorchDist, order: dict[str, Any], send: Callable[[Any], None]) -> None:
    """Each process: train new models one after another and report each finished run."""
    for run in range(*order["runs"]):
        with deadline(order["deadline_s"]):
            torch.manual_seed(run)
            model = DistributedDataParallel(DeepMLP(), bucket_cap_mb=order["cap_mb"])
            _register(model, order["composition"])
            train(model, driver.world.rank, run, order["steps"])
            names, weights = zip(*model.named_parameters(), strict=True)
            differing = driver.run(compare_weights(names, weights, order["steps"], stop=False))
        send({"buckets": count_buckets(model), "differing": len(differing)})


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """On timeout print the stacks of all threads and end the process; if that hangs, `run_ranks` ends it."""

    def give_up() -> None:
        faulthandler.dump_traceback(file=2)
        print(f"\n{HANG_MESSAGE} after {seconds:g} s", file=sys.__stderr__, flush=True)
        os._exit(3)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _register(model: DistributedDataParallel, composition: str) -> None:
    if composition != TORCH:
        attach(model, composition)
        return
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=4, start_powerSGD_iter=2
    )  # the smallest value that it accepts
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def train(model: nn.Module, rank: int, run: int, steps: int) -> None:
    generator = torch.Generator().manual_seed(2 * run + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        x = torch.randn(8, WIDTH, generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.flip(1)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def run_endurance(
    composition: str, buckets: int, runs: int, steps: int, deadline_s: float, alone: bool = False
) -> EnduranceRow:
    """All runs of one row; after a failure, new processes are started. alone: new processes for every run."""
    row, began, tried = EnduranceRow(composition, buckets), time.monotonic(), 0

    def on_run(outcome: dict[str, int]) -> None:
        row.buckets = outcome["buckets"]
        row.good += not outcome["differing"]
        row.differing += outcome["differing"] > 0
        _progress(row, runs)

    while tried < runs and row.failures < MAX_FAILURES:
        end = tried + 1 if alone else runs
        order = {"composition": composition, "cap_mb": CAPS_MB[buckets], "runs": (tried, end), "steps": steps}
        try:
            run_ranks(
                2, "thinwire_lab.bench.endurance:run_trainings", order | {"deadline_s": deadline_s}, on_progress=on_run,
                timeout_s=60 + deadline_s * (end - tried),
            )  # fmt: skip
        except PeerLostError as error:
            kind = classify_failure(str(error))
            setattr(row, kind, getattr(row, kind) + 1)
            row.last_log = str(error)[-2000:]
            _progress(row, runs)
        tried = row.good + row.failures
    row.not_tried, row.seconds = runs - tried, time.monotonic() - began
    return row


def classify_failure(text: str) -> str:
    """The kind of a failure from the log of the failed worker: "hangs", "errors" or "aborts"."""
    if HANG_MESSAGE in text or "did not finish in time" in text:
        return "hangs"
    return "errors" if "Traceback" in text and "terminate called" not in text else "aborts"


def _progress(row: EnduranceRow, runs: int) -> None:
    if sys.stderr.isatty():
        done = row.good + row.failures
        print(
            f"\r{row.composition}, {row.buckets} buckets: {done} of {runs}", end="\x1b[K", file=sys.stderr, flush=True
        )


_COLUMNS = {"buckets": 8, "good": 6, "hangs": 7, "aborts": 8, "errors": 8, "differ": 8, "not tried": 11, "s": 8}
HEAD = f"{'composition':<27}" + "".join(f"{name:>{width}}" for name, width in _COLUMNS.items())


def format_row(row: EnduranceRow) -> str:
    counts = f"{row.hangs:>7}{row.aborts:>8}{row.errors:>8}{row.differing:>8}{row.not_tried:>11}{row.seconds:>8.1f}"
    return f"{row.composition:<27}{row.buckets or row.wanted_buckets:>8}{row.good:>6}{counts}"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if there was no failure, else 1."""
    parser = argparse.ArgumentParser(prog="python -m thinwire_lab.bench.endurance", description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=25, help="runs of each composition with each number of buckets (default: 25)"
    )
    parser.add_argument("--steps", type=int, default=50, help="steps of each run (default: 50)")
    parser.add_argument(
        "--deadline-s", type=float, default=120.0, help="seconds after which a run counts as a hang (default: 120)"
    )
    parser.add_argument(
        "--torch", action="store_true", help="use torch's PowerSGD hook, with new processes for every run"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE as JSON")
    options = parser.parse_args(arguments)
    rows = []
    print(HEAD, flush=True)
    for composition in (TORCH,) if options.torch else COMPOSITIONS:
        for buckets in CAPS_MB:
            row = run_endurance(composition, buckets, options.runs, options.steps, options.deadline_s, options.torch)
            rows.append(row)
            print(("\r\x1b[K" if sys.stderr.isatty() else "") + format_row(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 1 if any(row.failures for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
