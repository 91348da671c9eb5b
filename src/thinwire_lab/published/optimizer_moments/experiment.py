"""optimizer-moments: compressing Adam's moments between hosts (Maslov & Polyakov, 2026): error, saving and cost.

First offline, on real moments: a GPT trains on WikiText-2 by words, and another on tiny-shakespeare by characters, for
200 steps; then each of 64 hosts continues for 50 steps on its own part of the text. The hosts' moments are averaged by
every method in lockstep, for 1 to 64 hosts (one host: its moments move to another), with the rules that keep v valid.
Errors are relative to the exact average; the update is m / (√v + ε) with bias correction. Times are of one core.
Break-even is the bandwidth below which encoding and decoding take less time than they save. Then end to end on four
processes: local AdamW, a round every 16 steps, with dense weights and moments by each method; without a limit, and on
links of 100 Mbit/s.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from thinwire.core import TensorSpec

from ...configuration.config import Experiment, Method, OptimizerConfig, RunGroup, TaskConfig
from ...configuration.run_plan import Job, RunPlan
from ...measuring.folder import write_json
from ...running.build_jobs import build_run_plan
from ...tasks import make_task
from ...tasks.splits import Split
from ...testbed.network import can_build_network
from .bitsandbytes_baseline import measure_bitsandbytes
from .capture import capture
from .measurement import compute_exact_mean, measure_case
from .methods import COMPRESSORS_FOR_RULES, METHODS, RULES, MomentMethod
from .tables import summarize

TASKS: dict[str, dict[str, Any]] = {
    "wikitext2": {"layers": 2, "width": 16, "heads": 2, "context": 32, "batch": 2},
    "shakespeare": {"layers": 2, "width": 64, "heads": 4, "context": 64, "batch": 4},
}
LARGE = {
    "wikitext2": {"layers": 4, "width": 128, "heads": 4, "context": 64, "batch": 8},
    "shakespeare": {"layers": 6, "width": 256, "heads": 8, "context": 128, "batch": 8},
}
SIZE: dict[str, Any] = {"hosts": [1, 2, 4, 16, 64], "common": 200, "own": 50, "each": 1}
THIN_LINK, SYNC_EVERY, PROCESSES = "100mbit", 16, 4
MOMENTS = {
    "own moments": None,
    "dense": "dense()",
    "uniform 8 bits": "uniform(bits=8)",
    "uniform 4 bits": "uniform(bits=4)",
    "uniform 2 bits": "uniform(bits=2)",
    "Top-k 10 %": "topk(density=0.1)",
    "Top-k 1 %": "topk(density=0.01)",
    "EF(Top-k 1 %)": "ef(topk(density=0.01))",
    "EF21(Top-k 1 %)": "ef21(topk(density=0.01))",
    "Top-k 1 to 10 %": "scheduled(topk(density=0.1), start=0.01, end=0.1, steps=20)",
    "Top-k 10 to 1 %": "scheduled(topk(density=0.1), start=0.1, end=0.01, steps=20)",
    "sketch of Top-k 2 %": "sketch(topk(density=0.02))",
    "tensor train, error 0.3": "tensor_train(max_error=0.3)",
    "tensor train, rank 4": "tensor_train(rank=4)",
    "ST-HOSVD, rank 4": "st_hosvd(rank=4)",
    "Top-k 10 %, no rules": 'moments(topk(density=0.1), transmit="v", mask=false, floor=false)',
}


def build_training(full: bool = False, thin: bool = True) -> Experiment:
    """Build the end-to-end runs; `thin` adds those on thin links."""
    methods = tuple(Method(label, f"local(sync_every={SYNC_EVERY})", moments=text) for label, text in MOMENTS.items())
    groups: tuple[RunGroup, ...] = (RunGroup(f"{PROCESSES} processes", PROCESSES, driver="processes"),)
    if thin:  # the losses are the same, so a few rounds suffice for the times
        groups += (RunGroup(f"{PROCESSES} processes, {THIN_LINK}", PROCESSES, driver="processes", link=THIN_LINK,
                            steps=4 * SYNC_EVERY,
                         log_every=4 * SYNC_EVERY),)  # fmt: skip
    return Experiment(
        name="optimizer-moments",
        title="optimizer-moments: Adam's moments between hosts",
        description=(__doc__ or "").partition("\n\n")[2].replace("\n", " "),
        task=TaskConfig("shakespeare", (LARGE if full else TASKS)["shakespeare"]),
        methods=methods,
        groups=groups,
        optimizer=OptimizerConfig("adamw", lr=3e-3, weight_decay=0.01, schedule="cosine", warmup_steps=20),
        steps=2000 if full else 20 * SYNC_EVERY,
        log_every=2 * SYNC_EVERY,
        checkpoint_every=5 * SYNC_EVERY,
    )


def build_plan(full: bool = False, data: str | None = None) -> RunPlan:
    """Build the plan. Thin links need root; without it those runs are left out, and the report says so."""
    return build_plan_for(build_training(full, thin=can_build_network()), LARGE if full else TASKS, SIZE, data)


def build_plan_for(
    experiment: Experiment, tasks: dict[str, dict[str, Any]], size: dict[str, Any], data: str | None
) -> RunPlan:
    for name, settings in tasks.items():
        make_task(name, settings, data).prepare(max(size["hosts"]), Split.parse("iid"))
    runs = build_run_plan(experiment, data)
    offline = [
        Job(
            f"moments-{name}",
            f"{__name__}:measure",
            {"task": name, "settings": settings, "data": data, **size},
            f"moments of {name}",
        )
        for name, settings in tasks.items()
    ]

    def finish(results: list[dict[str, Any]]) -> dict[str, Any]:
        measured, trained = results[: len(offline)], results[len(offline) :]
        return {"runs": trained, **runs.finish(trained), **summarize(measured, trained)}

    config = {"training": experiment.to_dict(), "tasks": tasks, **size}
    return RunPlan("optimizer-moments", {**runs.head, "config": config}, [*offline, *runs.jobs], finish)


@contextmanager
def _hide_sketch_warnings() -> Iterator[None]:
    """Failures of sketches that are too small are in the tables."""
    logger = logging.getLogger("thinwire.aggregators.sketch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@_hide_sketch_warnings()
def measure(driver: object, argument: dict[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """Measure one task's moments with every method. Finished hosts and cases are read from the job's folder."""
    torch.set_num_threads(1)  # times are of one core
    place = Path(argument["folder"]) / "checkpoint"
    counts, steps = list(argument["hosts"]), argument["common"] + argument["own"]
    task = make_task(argument["task"], argument["settings"], argument["data"])
    hosts = capture(
        task, max(counts), argument["common"], argument["own"], place,
        lambda done, of: tell({"step": done // 2, "steps": of}),
    )  # fmt: skip
    layers = {name: TensorSpec.of(name, pair) for name, pair in hosts[0].items()}
    cases = [(count, *one) for count in counts for one in list_cases(layers, argument["each"])]
    kept = place / "cases.json"
    rows = json.loads(kept.read_text())["rows"] if kept.is_file() else []
    true = {count: compute_exact_mean(hosts[:count]) for count in counts}
    for done, (count, method, saving, texts) in enumerate(cases):
        tell({"step": (len(cases) + done) // 2, "steps": len(cases)})
        if done < len(rows):
            continue
        found = measure_case(texts, hosts[:count], true[count], steps)
        rows.append({"way": method.label, "family": method.family, "general": method.general, "asked": saving, **found})
        write_json(kept, {"rows": rows})
    few = min(4, max(counts))
    ruled = [
        {"way": inside, "rules": rules}
        | measure_case(dict.fromkeys(layers, form.format(inside)), hosts[:few], compute_exact_mean(hosts[:few]), steps)
        for inside in COMPRESSORS_FOR_RULES
        for rules, form in RULES.items()
    ]
    other = measure_bitsandbytes(hosts[0], steps)
    return {"task": argument["task"], "task_facts": task.describe(), "rows": rows, "rules": ruled, "outside": other}


def list_cases(layers: dict[str, TensorSpec], each: int) -> list[tuple[MomentMethod, float, dict[str, str]]]:
    """Return every method with each of its savings (or every `each`-th), without duplicate settings."""
    found: list[tuple[MomentMethod, float, dict[str, str]]] = []
    for method in METHODS:
        for saving in method.savings[::each]:
            texts = method.texts(layers, saving)
            if not any(known is method and same == texts for known, _, same in found):
                found.append((method, saving, texts))
    return found
