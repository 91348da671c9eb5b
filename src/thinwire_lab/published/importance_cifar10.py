"""E2: S0's importance operators on CIFAR-10, a fifth of all coordinates kept, no memory.

One worker, as published. By default a slim ResNet (0.3 M parameters) learns from 10,000 images for six epochs at a rate
that suits it; --published-size has the published model, data, optimizer and length: ResNet-18, all images, 20 epochs,
SGD at 0.001. In neither is it the published method: w is found anew every epoch by 50 steps of mirror descent for all
layers together on one minibatch (published: 200 steps for one layer after the other), and no operator is followed by Q,
the rounding to powers of two.
"""

from __future__ import annotations

from typing import Any

from ..configuration.config import Experiment, Method, OptimizerConfig
from ..configuration.run_plan import RunPlan
from ..running.build_jobs import build_run_plan
from .cifar10 import on_cifar10, steps_of_an_epoch
from .claims import Claim, claims_table, final_of, share_of_solver

SOLVER = {"constraint": "simplex", "steps": 50, "eta": 1.0, "lam": 0.1, "keep": "last"}
PUBLISHED = {
    "TopK": 81.21, "RandK": 76.78, "MD Stochastic": 77.75, "MD Greedy": 79.37, "MD Greedy Weighted": 77.72,
    "MD Weighted Greedy": 83.71,
}  # fmt: skip
TEXTS = {
    "dense": "dense()",
    "TopK": "topk(density=0.2)",
    "RandK": "randomk(density=0.2, scaled=false)",
    "MD Stochastic": "importance_sampling(density=0.2)",
    "MD Greedy": "importance_topk(density=0.2)",
    "MD Greedy Weighted": 'importance_topk(density=0.2, weights="normalized")',
    "MD Weighted Greedy": 'impk(density=0.2, weights="normalized")',
}


def build_experiment(full: bool = False) -> Experiment:
    importance = SOLVER | {"refresh_every": steps_of_an_epoch(full)}
    methods = tuple(
        Method(label, text, importance=importance if label.startswith("MD") else None) for label, text in TEXTS.items()
    )
    rates = {"lr": 1e-3} if full else {"lr": 0.1, "schedule": "cosine", "warmup_steps": 40}
    return on_cifar10(
        "importance-cifar10",
        "E2: importance operators on CIFAR-10, 20 % kept",
        __doc__,
        methods,
        OptimizerConfig("sgd", momentum=0.9, weight_decay=5e-4, **rates),
        epochs=20 if full else 6,
        target=0.8 if full else 0.55,
        full=full,
    )


def build_plan(full: bool = False, data: str | None = None) -> RunPlan:
    return build_run_plan(build_experiment(full), data, summarize)


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    accuracy = {run["label"]: 100 * final_of(run, "accuracy") for run in runs}
    rest = [label for label in TEXTS if label.startswith("MD")]
    claims = [
        Claim("MD Weighted Greedy is the best of all that compress",
              accuracy["MD Weighted Greedy"] >= max(v for k, v in accuracy.items() if k != "dense"), accuracy),
        Claim("MD Weighted Greedy beats TopK", accuracy["MD Weighted Greedy"] > accuracy["TopK"],
              {k: accuracy[k] for k in ("MD Weighted Greedy", "TopK")}),
        Claim("TopK beats the other importance operators", all(
            accuracy["TopK"] > accuracy[k] for k in rest if k != "MD Weighted Greedy"), {k: accuracy[k] for k in rest}),
        Claim("every importance operator beats RandK", all(accuracy[k] > accuracy["RandK"] for k in rest),
              {k: accuracy[k] for k in (*rest, "RandK")}),
    ]  # fmt: skip
    rows = [[label, PUBLISHED.get(label), round(accuracy[label], 2)] for label in TEXTS if label in accuracy]
    measured = {
        "title": "Test accuracy in percent", "rows": rows,
        "note": "Published: ResNet-18 on all of CIFAR-10 after 20 epochs. Measured: this run's protocol, one seed.",
        "columns": ["method", "published", "measured"],
    }  # fmt: skip
    return {"tables": [measured, claims_table("What was claimed", claims), share_of_solver(runs)]}
