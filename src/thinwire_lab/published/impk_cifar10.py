"""impk-cifar10: TopK and ImpK (Khafizov, 2025) on CIFAR-10, 1 % kept, without memory, with EF and with SCAM.

One worker, cautious AdamW, as published. By default a slim ResNet (0.3 M parameters) trains on 10,000 images for six
epochs, all methods at one learning rate; --published-size has ResNet-18, all images, 50 epochs, learning rates as
published (EF twice, SCAM a tenth of the others'), five seeds. ImpK_s constrains w to a scaled simplex, ImpK_c to the
box [0, 2]; w is solved for once per epoch, by 50 steps on one minibatch.
"""

from __future__ import annotations

from typing import Any

from ..configuration.config import Experiment, Method, OptimizerConfig
from ..configuration.run_plan import RunPlan
from ..running.build_jobs import build_run_plan
from .cifar10 import build_cifar10_experiment, steps_per_epoch
from .claims import Claim, build_claims_table, build_solver_time_table, final_value

RATE = 3e-3
PUBLISHED = {  # test accuracy after 10 and after 50 epochs, read from figures
    "TopK": (76.5, 85.2), "ImpK_s": (75.6, 85.0), "ImpK_c": (77.4, 85.5),
    "TopK-EF": (80.6, 90.9), "ImpK_s-EF": (81.0, 91.0), "ImpK_c-EF": (81.3, 91.0),
    "TopK-SCAM": (82.4, 90.0), "ImpK_s-SCAM": (86.5, 90.8), "ImpK_c-SCAM": (86.7, 90.8),
}  # fmt: skip
COMPRESSORS = {"TopK": "topk(density=0.01)", "ImpK_s": "impk(density=0.01)", "ImpK_c": "impk(density=0.01)"}
MEMORIES = {"": "{}", "-EF": "ef({})", "-SCAM": "scam({})"}
PUBLISHED_RATES = {"": 1e-3, "-EF": 2e-3, "-SCAM": 1e-4}


def solver_settings(
    label: str, rate: float, refresh_every: int, eta: float = 1e7, lam: float = 1e-3
) -> dict[str, Any] | None:
    """Return the published settings. The box form steps by eta times the rate, which the slope contains already."""
    if label.startswith("TopK"):
        return None
    common = {"steps": 50, "keep": "last", "refresh_every": refresh_every}
    if label.startswith("ImpK_s"):
        return common | {"constraint": "scaled_simplex", "eta": eta, "lam": lam}
    return common | {"constraint": "box", "high": 2.0, "eta": eta * rate}


def build_methods(full: bool, refresh_every: int) -> tuple[Method, ...]:
    """Build the methods; w is solved for every `refresh_every` steps."""
    made = [Method("dense", "dense()")]
    for suffix, memory in MEMORIES.items():
        rate = PUBLISHED_RATES[suffix] if full else RATE
        for name, text in COMPRESSORS.items():
            label = name + suffix
            importance = solver_settings(label, rate, refresh_every, 1e6 if suffix == "-SCAM" else 1e7)
            made.append(Method(label, memory.format(text), rate if full else None, importance))
    return tuple(made)


def build_experiment(full: bool = False) -> Experiment:
    """Build the experiment at the default or the published size."""
    return build_cifar10_experiment(
        "impk-cifar10",
        "impk-cifar10: TopK and ImpK on CIFAR-10, 1 % kept, with EF and SCAM",
        __doc__,
        build_methods(full, steps_per_epoch(full)),
        OptimizerConfig("cadamw", lr=1e-3 if full else RATE, weight_decay=0.01),
        epochs=50 if full else 6,
        target=0.8 if full else 0.5,
        full=full,
        seeds=(52, 53, 54, 55, 56) if full else (52,),
    )


def build_plan(full: bool = False, data: str | None = None) -> RunPlan:
    """Build the plan of all runs."""
    return build_run_plan(build_experiment(full), data, summarize)


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tables of accuracies, claims and solver times, from means over seeds."""
    seeds: dict[str, list[float]] = {}
    for run in runs:
        seeds.setdefault(run["label"], []).append(100 * final_value(run, "accuracy"))
    accuracy = {label: sum(values) / len(values) for label, values in seeds.items()}

    def select(*labels: str) -> dict[str, float]:
        return {label: accuracy[label] for label in labels}

    with_memory = [label for label in accuracy if "-" in label]
    claims = [
        Claim("EF improves each compressor", all(accuracy[f"{n}-EF"] > accuracy[n] for n in COMPRESSORS),
              select(*COMPRESSORS, *(f"{n}-EF" for n in COMPRESSORS))),
        Claim("SCAM improves each compressor", all(accuracy[f"{n}-SCAM"] > accuracy[n] for n in COMPRESSORS),
              select(*COMPRESSORS, *(f"{n}-SCAM" for n in COMPRESSORS))),
        Claim("early in training, ImpK with SCAM is ahead of all others",
              min(accuracy["ImpK_s-SCAM"], accuracy["ImpK_c-SCAM"])
              >= max(v for k, v in accuracy.items() if k not in ("dense", "ImpK_s-SCAM", "ImpK_c-SCAM")),
              select("ImpK_s-SCAM", "ImpK_c-SCAM", "TopK-SCAM", "ImpK_c-EF")),
        Claim("without a memory, ImpK is close to TopK (within 1 point)",
              all(abs(accuracy[n] - accuracy["TopK"]) <= 1 for n in ("ImpK_s", "ImpK_c")), select(*COMPRESSORS)),
        Claim("with a memory, all forms are equal (within 1.5 points)",
              max(accuracy[k] for k in with_memory) - min(accuracy[k] for k in with_memory) <= 1.5,
              select(*with_memory)),
    ]  # fmt: skip
    rows = [[label, *PUBLISHED.get(label, (None, None)), round(accuracy[label], 2)] for label in accuracy]
    measured = {
        "title": "Test accuracy in percent", "rows": rows,
        "note": "Published: ResNet-18 on all of CIFAR-10, read from figures. Measured: the protocol of this run.",
        "columns": ["method", "published, epoch 10", "published, epoch 50", "measured"],
    }  # fmt: skip
    return {"tables": [measured, build_claims_table("Published claims", claims), build_solver_time_table(runs)]}
