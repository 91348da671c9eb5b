"""impk-wikitext2: TopK and ImpK (Khafizov, 2025) for a GPT on WikiText-2, 1 % kept, without memory, with EF and SCAM.

One worker, as published; tokens are words, with a vocabulary of 33,278, so that the embedding is by far the largest
layer. By default a GPT of two layers and width 32 trains on a million tokens once, all methods at one learning rate;
--published-size has GPT-2 small on the whole file, 50 epochs, learning rates as published (EF a tenth of the others').
ImpK_s constrains w to a scaled simplex (--published-size only), ImpK_c to the box [0, 2]; w is solved for four times
per epoch, on one minibatch.
"""

from __future__ import annotations

from typing import Any

from ..configuration.config import Experiment, Method, OptimizerConfig, RunGroup, TargetMetric, TaskConfig
from ..configuration.run_plan import RunPlan
from ..running.build_jobs import build_run_plan
from .claims import Claim, best_value, build_claims_table, build_solver_time_table, final_value
from .impk_cifar10 import COMPRESSORS, MEMORIES, solver_settings

RATE = 3e-3
PUBLISHED = {  # train loss at the end, best validation loss, validation loss at the end
    "TopK": (3.266, 4.465, 4.528), "ImpK_s": (3.20, 4.44, 4.50), "ImpK_c": (3.17, 4.39, 4.46),
    "TopK-EF": (2.223, 4.406, 4.906), "ImpK_s-EF": (2.15, 4.405, 4.95), "ImpK_c-EF": (2.15, 4.404, 4.93),
    "TopK-SCAM": (1.694, 4.501, 6.053), "ImpK_s-SCAM": (1.617, 4.544, 6.259), "ImpK_c-SCAM": (1.78, 4.627, 6.21),
}  # fmt: skip
PUBLISHED_RATES = {"": 1e-3, "-EF": 1e-4, "-SCAM": 1e-3}
SMALL = {"layers": 2, "width": 32, "heads": 2, "context": 64, "batch": 8, "tokens": 1_000_000}
FULL = {"size": "gpt2", "context": 1024, "batch": 16, "tokens": "all"}


def build_methods(full: bool, refresh_every: int) -> tuple[Method, ...]:
    """Build the methods; w is solved for every `refresh_every` steps."""
    made = [Method("dense", "dense()")]
    for suffix, memory in MEMORIES.items():
        rate = PUBLISHED_RATES[suffix] if full else RATE
        for name, text in COMPRESSORS.items():
            if full or name != "ImpK_s":
                importance = solver_settings(name, rate, refresh_every, 1e8 if suffix == "-EF" else 1e7, 1e-4)
                made.append(Method(name + suffix, memory.format(text), rate if full else None, importance))
    return tuple(made)


def build_experiment(full: bool = False) -> Experiment:
    """Build the experiment at the default or the published size."""
    epoch = 2_088_628 // (16 * 1024) if full else 1_000_000 // (8 * 64)
    rates = {"lr": 1e-3} if full else {"lr": RATE, "schedule": "cosine", "warmup_steps": 100}
    return Experiment(
        name="impk-wikitext2",
        title="impk-wikitext2: a GPT on WikiText-2, 1 % kept, with EF and SCAM",
        description=(__doc__ or "").partition("\n\n")[2].replace("\n", " "),
        task=TaskConfig("wikitext2", FULL if full else SMALL),
        methods=build_methods(full, epoch // 4 + 1),
        groups=(RunGroup("one worker", workers=1),),
        optimizer=OptimizerConfig("adamw", weight_decay=0.01, **rates),
        steps=50 * epoch if full else epoch,
        target=TargetMetric("perplexity", 100.0 if full else 600.0),
        log_every=epoch // 8,
        checkpoint_every=epoch // 4,
    )


def build_plan(full: bool = False, data: str | None = None) -> RunPlan:
    """Build the plan of all runs."""
    return build_run_plan(build_experiment(full), data, summarize)


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tables of losses, claims and solver times."""
    last = {run["label"]: final_value(run, "loss") for run in runs}
    best = {run["label"]: best_value(run, "loss") for run in runs}
    compressors = [name for name in COMPRESSORS if name in last]

    def select(losses: dict[str, float], *labels: str) -> dict[str, float]:
        return {label: losses[label] for label in labels}

    scam, others = ([k for k in best if ("-SCAM" in k) == with_it and k != "dense"] for with_it in (True, False))
    claims = [
        Claim("ImpK_c has a lower validation loss than TopK, without a memory", best["ImpK_c"] < best["TopK"],
              select(best, "ImpK_c", "TopK")),
        Claim("EF improves each compressor (best validation loss)", all(best[f"{n}-EF"] < best[n] for n in compressors),
              select(best, *compressors, *(f"{n}-EF" for n in compressors))),
        Claim("SCAM has the highest final validation loss",
              min(last[k] for k in scam) > max(last[k] for k in others), select(last, *scam, *others)),
    ]  # fmt: skip
    rows = [[k, *PUBLISHED.get(k, (None,) * 3)[1:], round(best[k], 3), round(last[k], 3)] for k in last]
    measured = {
        "title": "Validation loss (nats per token)", "rows": rows,
        "note": "Published: GPT-2 small, 50 epochs, another tokenizer; losses compare within a column only.",
        "columns": ["method", "published, best", "published, final", "measured, best", "measured, final"],
    }  # fmt: skip
    return {"tables": [measured, build_claims_table("Published claims", claims, 3), build_solver_time_table(runs)]}
