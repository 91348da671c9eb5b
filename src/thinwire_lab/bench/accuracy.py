"""`thinwire bench accuracy`: wall-clock time and bytes until a real model reaches a target, over a slow link.

Two workers of one thread each, in network namespaces. All methods have the same initial weights, batches and learning
rates for a seed, and take the same number of steps, so that what differs is the time of a step, its bytes, and what
the compression costs in quality.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from thinwire.core import CompositionError, PeerLostError
from thinwire.drivers.processes import run_ranks

from ..configuration.config import OptimizerConfig
from ..configuration.slugs import slugify
from ..measuring.folder import RunFolder, RunFolderError
from ..tasks import make_task
from ..tasks.splits import Split
from ..testbed.network import network
from .ddp_methods import ONE_BUCKET_MB, POWERSGD, TOPK, TORCH_POWERSGD, DDPMethod

WORKERS = 2
SEEDS = (1, 2, 3)
EVALUATIONS = 20  # of a run, after the one of the initial weights
_MAX_RUN_S = 4 * 3600.0

METHODS = {
    "plain": DDPMethod("plain DDP", "plain"),
    "fp16": DDPMethod("torch fp16 hook", "fp16"),
    "torch-powersgd": DDPMethod(TORCH_POWERSGD, "torch powersgd", ONE_BUCKET_MB),
    "topk": DDPMethod("thinwire ef(topk 1 %)", TOPK),
    "powersgd": DDPMethod("thinwire ef(powersgd 4)", POWERSGD),
    "qsgd": DDPMethod("thinwire two_hop(qsgd 4)", "two_hop(qsgd(bits=4))"),
    "topk-5": DDPMethod("thinwire ef(topk 5 %)", "ef(topk(density=0.05))"),
}


@dataclass(frozen=True)
class AccuracyTask:
    """What is trained, on which link, and the target.

    settings: of the laboratory's task. metric: "accuracy", to be raised to the target, or "perplexity", to be
    lowered.
    """

    task: str
    rate: str
    steps: int
    metric: str
    target: float
    optimizer: OptimizerConfig
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.steps < EVALUATIONS:
            raise CompositionError(f"bench accuracy: --steps must be at least {EVALUATIONS}, got {self.steps}")

    @property
    def every(self) -> int:
        """Steps between two evaluations."""
        return self.steps // EVALUATIONS

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> AccuracyTask:
        optimizer = dict(values["optimizer"])
        return cls(**{**values, "optimizer": OptimizerConfig(**optimizer | {"betas": tuple(optimizer["betas"])})})


TASKS = {
    "cifar10": AccuracyTask(
        "cifar10", "75mbit", 1000, "accuracy", 0.45,
        OptimizerConfig(lr=0.05, momentum=0.9, schedule="cosine", warmup_steps=50),
        {"model": "slim", "images": 20_000, "test_images": 3_000, "batch": 16},
    ),
    "wikitext2": AccuracyTask(
        "wikitext2_bytes", "75mbit", 800, "perplexity", 12.0,
        OptimizerConfig("adamw", lr=3e-3, weight_decay=0.01, schedule="cosine", warmup_steps=40),
        {"layers": 2, "width": 128, "heads": 4, "context": 128, "batch": 4, "tokens": "all", "valid_windows": 256},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class AccuracyRun:
    """One training: a task by name, a method by name, a seed."""

    task: str
    method: str
    seed: int

    @property
    def key(self) -> str:
        """Name of its folder."""
        return slugify(f"{self.task}-{self.method}-{self.seed}")


def list_runs(tasks: Sequence[str], methods: Sequence[str], seeds: Sequence[int]) -> list[AccuracyRun]:
    """All runs; those of the first seed first, so that a set that is not complete has whole tables."""
    return [AccuracyRun(task, method, seed) for seed in seeds for task in tasks for method in methods]


def open_folder(path: Path, command: str) -> RunFolder:
    """The folder of earlier runs, or a new one."""
    if (path / "config.json").is_file():
        folder = RunFolder.open(path)
        if folder.read("config.json").get("benchmark") != "accuracy":
            raise RunFolderError(f"{path} has runs of another kind; use another --folder")
        return folder
    if path.exists() and any(path.iterdir()):
        raise RunFolderError(f"{path} is not empty and has no runs of this benchmark; use another --folder")
    return RunFolder.create(path, {"benchmark": "accuracy"}, command)


def read_runs(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """Stored runs, finished or failed, in the order of tasks, methods and seeds."""
    keys = sorted(place.name for place in (folder.path / "jobs").iterdir())
    found = [stored for key in keys if (stored := folder.read_result(key)) is not None]
    order = list(METHODS)
    yield from sorted(found, key=lambda run: (run["task"], order.index(run["method"]), run["seed"]))


def is_finished(folder: RunFolder, run: AccuracyRun, task: AccuracyTask) -> bool:
    """Whether a run is stored and did not fail.

    Raises:
        RunFolderError: it was made with other settings; the target may differ.
    """
    stored = folder.read_result(run.key)
    if stored is None or "error" in stored:
        return False
    old, new = stored["settings"], _to_plain(task)
    differing = [key for key in new if key != "target" and old.get(key) != new[key]]
    if differing:
        key = differing[0]
        raise RunFolderError(
            f"{folder.path}: {run.key} was run with {key} {old.get(key)!r}, not {new[key]!r}; use another --folder"
        )
    return True


def prepare(task: AccuracyTask, data: str | None) -> None:
    """Locate or download the data, before anything starts; DataError if they are missing."""
    make_task(task.task, task.settings, data).prepare(WORKERS, Split.parse("iid"))


def perform(
    folder: RunFolder, run: AccuracyRun, task: AccuracyTask, data: str | None, on_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Train once and store the result; a run whose processes fail is stored with its error and can be repeated."""
    began = time.monotonic()
    head = {"task": run.task, "method": run.method, "seed": run.seed, "settings": _to_plain(task)}
    order = {"settings": _to_plain(task), "method": vars(METHODS[run.method]), "seed": run.seed, "data": data}
    try:
        with network(WORKERS, task.rate) as net:
            ranks = run_ranks(
                WORKERS, "thinwire_lab.bench.accuracy_rank:run_rank", order | {"device": net.hosts[0].device},
                on_progress=lambda text: on_progress(f"{run.key}: {text}"), timeout_s=_MAX_RUN_S,
                command_prefixes=net.command_prefixes(),
            )  # fmt: skip
        result = head | merge_ranks(ranks)
    except PeerLostError as error:
        text = str(error).strip()
        result = head | {"error": f"{text} ended by a signal, without a message" if text.endswith(":") else text}
    result["machine_s"] = time.monotonic() - began
    folder.store_result(run.key, result)
    return result


def merge_ranks(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A run's result: rank 0 evaluates; times are those of the slower rank; bytes are the mean of both."""
    curve = dict(ranks[0]["curve"])
    curve["seconds"] = np.cumsum(np.max([rank["seconds"] for rank in ranks], 0)).tolist()
    curve["wire_bytes"] = np.cumsum(np.mean([rank["sent_bytes"] for rank in ranks], 0)).tolist()
    return {
        "curve": curve, "compute_s": max(rank["compute_s"] for rank in ranks), "facts": ranks[0]["facts"],
    }  # fmt: skip


def _to_plain(task: AccuracyTask) -> dict[str, Any]:
    """As it is after a round trip through JSON."""
    values = task.to_json()
    values["optimizer"]["betas"] = list(values["optimizer"]["betas"])
    return values
