"""DiLoCo (Douillard et al., 2023) on a small GPT, synchronized every 16 steps: dense, 4 bits, sparse 2 bits, streaming.

Tiny Shakespeare by characters, four workers, each with its own part of the text and its own AdamW. The outer optimizer
is Nesterov momentum on the averaged change since the last round, as published; the form of SparseLoCo (Sarfi et al.,
2025) sends 2 % of the change in 2 bits each, with error feedback, to a plain outer SGD step.
"""

from __future__ import annotations

from typing import Any

from ..configuration.config import Experiment, Method, OptimizerConfig, RunGroup, TargetMetric, TaskConfig
from ..configuration.run_plan import RunPlan
from ..running.build_jobs import build_run_plan
from .claims import best_value, final_value

OUTER = "outer_optimizer=nesterov(lr=0.7, momentum=0.9)"
METHODS = (
    Method("AdamW, every step", "dense()"),
    Method("AdamW, every step, EF(Top-k 1 %)", "ef(topk(density=0.01))"),
    Method("local, averaged", "local(sync_every=16)"),
    Method("DiLoCo", f"local(sync_every=16, {OUTER})"),
    Method("DiLoCo, 4 bits", f"local(sync_every=16, composition=ef(qsgd(bits=4)), {OUTER})"),
    Method(
        "sparse, 2 bits",
        "local(sync_every=16, composition=ef(topk(density=0.02, values=uniform(bits=2))), outer_optimizer=sgd(lr=1.0))",
    ),
    Method(
        "streamed DiLoCo",
        f"local(sync_every=16, num_fragments=4, fragment_sync_delay=2, fragment_update_alpha=0.5, {OUTER})",
    ),
)


def build_experiment(full: bool = False) -> Experiment:
    small = {"layers": 2, "width": 64, "heads": 4, "context": 64, "batch": 8}
    large = {"layers": 6, "width": 384, "heads": 6, "context": 256, "batch": 16}
    return Experiment(
        name="diloco",
        title="DiLoCo: loss against bytes",
        description=(__doc__ or "").partition("\n\n")[2].replace("\n", " "),
        task=TaskConfig("shakespeare", large if full else small),
        methods=METHODS,
        groups=(RunGroup("4 workers", 4),),
        optimizer=OptimizerConfig("adamw", lr=3e-3, weight_decay=0.01, schedule="cosine", warmup_steps=50),
        steps=5000 if full else 800,
        target=TargetMetric("loss", 1.5 if full else 2.0),
        log_every=32,
        checkpoint_every=160,
    )


def build_plan(full: bool = False, data: str | None = None) -> RunPlan:
    return build_run_plan(build_experiment(full), data, summarize)


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    dense = next(run for run in runs if run["label"] == METHODS[0].label)
    rows = [
        [run["label"], round(final_value(run, "loss"), 3), round(best_value(run, "loss"), 3),
         round(run["final"]["wire_bytes"] / 1e6, 3), dense["final"]["wire_bytes"] / run["final"]["wire_bytes"]]
        for run in runs
    ]  # fmt: skip
    table = {
        "title": "Loss against bytes",
        "note": "Nats per character on held-out text, of the mean model; bytes that rank 0 sent in the whole run.",
        "columns": ["method", "final loss", "best loss", "sent (MB)", "saving against dense"],
        "rows": rows,
    }
    return {"tables": [table]}
