"""importance-cifar10: importance operators (Khafizov & Beznosikov, 2024) on CIFAR-10, 20 % kept, no error feedback.

One worker, as published. By default a slim ResNet (0.3 M parameters) trains on 10,000 images for six epochs at a
learning rate chosen for it; --published-size has the published model, data, optimizer and length: ResNet-18, all
images, 20 epochs, SGD at 0.001. Neither is exactly the published method: w is solved for once per epoch by 50
mirror-descent steps for all layers together on one minibatch (published: 200 steps, layer by layer), and no operator is
followed by Q, the rounding to powers of two.
"""

from __future__ import annotations

from typing import Any

from ..configuration.config import Experiment, Method, OptimizerConfig
from ..configuration.run_plan import RunPlan
from ..running.build_jobs import build_run_plan
from .cifar10 import build_cifar10_experiment, steps_per_epoch
from .claims import Claim, build_claims_table, build_solver_time_table, final_value

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
    """Build the experiment at the default or the published size."""
    importance = SOLVER | {"refresh_every": steps_per_epoch(full)}
    methods = tuple(
        Method(label, text, importance=importance if label.startswith("MD") else None) for label, text in TEXTS.items()
    )
    rates = {"lr": 1e-3} if full else {"lr": 0.1, "schedule": "cosine", "warmup_steps": 40}
    return build_cifar10_experiment(
        "importance-cifar10",
        "importance-cifar10: importance operators on CIFAR-10, 20 % kept",
        __doc__,
        methods,
        OptimizerConfig("sgd", momentum=0.9, weight_decay=5e-4, **rates),
        epochs=20 if full else 6,
        target=0.8 if full else 0.55,
        full=full,
    )


def build_plan(full: bool = False, data: str | None = None) -> RunPlan:
    """Build the plan of all runs."""
    return build_run_plan(build_experiment(full), data, summarize)


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tables of accuracies, claims and solver times."""
    accuracy = {run["label"]: 100 * final_value(run, "accuracy") for run in runs}
    importance = [label for label in TEXTS if label.startswith("MD")]
    claims = [
        Claim("MD Weighted Greedy is the best of all compressors",
              accuracy["MD Weighted Greedy"] >= max(v for k, v in accuracy.items() if k != "dense"), accuracy),
        Claim("MD Weighted Greedy beats TopK", accuracy["MD Weighted Greedy"] > accuracy["TopK"],
              {k: accuracy[k] for k in ("MD Weighted Greedy", "TopK")}),
        Claim("TopK beats the other importance operators",
              all(accuracy["TopK"] > accuracy[k] for k in importance if k != "MD Weighted Greedy"),
              {k: accuracy[k] for k in importance}),
        Claim("every importance operator beats RandK", all(accuracy[k] > accuracy["RandK"] for k in importance),
              {k: accuracy[k] for k in (*importance, "RandK")}),
    ]  # fmt: skip
    rows = [[label, PUBLISHED.get(label), round(accuracy[label], 2)] for label in TEXTS if label in accuracy]
    measured = {
        "title": "Test accuracy in percent", "rows": rows,
        "note": "Published: ResNet-18 on all of CIFAR-10 after 20 epochs. Measured: one seed of this run.",
        "columns": ["method", "published", "measured"],
    }  # fmt: skip
    return {"tables": [measured, build_claims_table("Published claims", claims), build_solver_time_table(runs)]}
