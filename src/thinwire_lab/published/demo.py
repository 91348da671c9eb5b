"""demo: accuracy against bytes of nine compositions on real processes, and step times on thin and fast links."""

from __future__ import annotations

from ..configuration.config import Experiment, Method, OptimizerConfig, RunGroup, TargetMetric, TaskConfig
from ..configuration.run_plan import RunPlan
from ..running.build_jobs import build_run_plan

METHODS = (
    Method("dense", "dense()"),
    Method("bf16", 'cast(dtype="bf16")'),
    Method("QSGD 4 bits", "qsgd(bits=4)"),
    Method("EF(sign)", "ef(sign())"),
    Method("EF(Top-k 1 %)", "ef(topk(density=0.01))"),
    Method("EF(PowerSGD 2)", "ef(powersgd(rank=2))"),
    Method("Top-k 1 %", "topk(density=0.01)"),
    Method("EF21(Top-k 1 %)", "ef21(topk(density=0.01))"),
    Method("Random-k 1 %", "randomk(density=0.01, scaled=false)"),
)
REAL = tuple(method.label for method in METHODS[:7])
WITH_MEMORY = ("dense", "Top-k 1 %", "EF(Top-k 1 %)", "EF21(Top-k 1 %)", "Random-k 1 %")

DEMO = Experiment(
    name="demo",
    title="Training over a thin wire",
    description=(
        "An MLP of 85,000 weights trains on handwritten 8 × 8 digits. First on two real processes: bytes are those "
        "that were sent, and the last table has the modelled time of a step on a thin and on a fast link. The same "
        "runs in one process give the same figures bit for bit. Then eight workers that have two or three digits "
        "each: methods without error feedback fall behind."
    ),
    task=TaskConfig("digits", {"width": 256, "batch": 32}),
    methods=METHODS,
    groups=(
        RunGroup("2 workers, real processes", 2, driver="processes", methods=REAL),
        RunGroup("2 workers, one process", 2, methods=REAL),
        RunGroup("8 workers, digits sorted", 8, "label-sorted", methods=WITH_MEMORY),
    ),
    optimizer=OptimizerConfig(lr=0.05, momentum=0.9),
    steps=150,
    target=TargetMetric("accuracy", 0.95),
    log_every=10,
    checkpoint_every=100,
)


def build_plan(full: bool = False, data: str | None = None) -> RunPlan:
    return build_run_plan(DEMO, data)
