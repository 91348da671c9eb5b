"""local-sgd-gossip: the ten configurations of Tolstobrov (2022): Local-SGD with periods 1 to 32, gossip, sparse gossip.

The published network is not available; here a CNN of three convolutions (width 16) and two dense layers trains on
CIFAR-10 and CIFAR-100. All ten configurations as printed: averaging by Algorithm 1 (in iterations p, 2p, ... the
gradient at the old weights is applied to the average of the previous weights), gossip by Algorithm 2 (neighbors i ± s,
weight 1/3 each), of gradients at p = 1 and of the change since the last round at p > 1, sparsified without error
feedback by Algorithm 3, with a threshold that keeps 5 %. On CIFAR-10 also no. 3, 6 and 9 with error feedback. Accuracy
is that of the mean of all workers' models. Times are measured on four processes, with links of 50 Mbit/s and without a
limit. By default 4,000 images, 10 per worker and step, 12 epochs; --published-size: 50,000 images, 100 per step, 50
epochs.
"""

from __future__ import annotations

from typing import Any

from ...configuration.config import Experiment, Method, OptimizerConfig, RunGroup, TargetMetric, TaskConfig
from ...configuration.run_plan import RunPlan
from ...configuration.selection import Selection
from ...running.build_jobs import build_run_plan
from ...testbed.network import can_build_network
from .tables import build_configuration_table, build_findings_table

SPARSE = "quantile_threshold(density=0.05)"
PUBLISHED = (
    Method("1: p = 1", 'local(sync_every=1, payload="weights", overlap=true)'),
    Method("2: p = 1, gossip", "gossip(identity(), rotating())"),
    Method("3: p = 1, gossip, sparse", f"gossip({SPARSE}, rotating())"),
    Method("4: p = 4", 'local(sync_every=4, payload="weights", overlap=true)'),
    Method("5: p = 4, gossip", "local(sync_every=4, composition=gossip(identity(), rotating()))"),
    Method("6: p = 4, gossip, sparse", f"local(sync_every=4, composition=gossip({SPARSE}, rotating()))"),
    Method("7: p = 16", 'local(sync_every=16, payload="weights", overlap=true)'),
    Method("8: p = 16, gossip", "local(sync_every=16, composition=gossip(identity(), rotating()))"),
    Method("9: p = 16, gossip, sparse", f"local(sync_every=16, composition=gossip({SPARSE}, rotating()))"),
    Method("10: p = 32", 'local(sync_every=32, payload="weights", overlap=true)'),
)
WITH_ERROR_FEEDBACK = (
    Method("3 with EF", f"ef(gossip({SPARSE}, rotating()))"),
    Method("6 with EF", f"local(sync_every=4, composition=ef(gossip({SPARSE}, rotating())))"),
    Method("9 with EF", f"local(sync_every=16, composition=ef(gossip({SPARSE}, rotating())))"),
)
WORKERS = (16, 32, 60)
PROCESSES, TIMED_STEPS, THIN_LINK = 4, 256, "50mbit"


def build_experiment(full: bool = False, thin: bool = True) -> Experiment:
    images, batch, epochs = (50_000, 100, 50) if full else (4_000, 10, 12)
    size = {"model": "small cnn", "images": images, "batch": batch, "test_images": 10_000 if full else 1_000}
    size |= {"augment": False}
    published = tuple(method.label for method in PUBLISHED)
    accuracy_groups = tuple(
        RunGroup(
            f"{name}, {workers} workers", workers, task=task, log_every=images // (batch * workers), methods=labels
        )
        for name, task, labels in (("CIFAR-10", None, ()), ("CIFAR-100", {"name": "cifar100"}, published))
        for workers in WORKERS
    )
    timed = {"driver": "processes", "methods": published, "steps": TIMED_STEPS, "log_every": TIMED_STEPS}
    timed_groups: tuple[RunGroup, ...] = (RunGroup(f"{PROCESSES} processes, fast link", PROCESSES, **timed),)  # type: ignore[arg-type]
    if thin:
        timed_groups += (RunGroup(f"{PROCESSES} processes, {THIN_LINK}", PROCESSES, link=THIN_LINK, **timed),)  # type: ignore[arg-type]
    return Experiment(
        name="local-sgd-gossip",
        title="local-sgd-gossip: Local-SGD, gossip and sparsification",
        description=(__doc__ or "").partition("\n\n")[2].replace("\n", " "),
        task=TaskConfig("cifar10", size),
        methods=PUBLISHED + WITH_ERROR_FEEDBACK,
        groups=accuracy_groups + timed_groups,
        optimizer=OptimizerConfig(lr=0.1),
        epochs=epochs,
        target=TargetMetric("accuracy", 0.3),
        checkpoint_every=200,
    )


def build_plan(full: bool = False, data: str | None = None, some: Selection | None = None) -> RunPlan:
    """Build the plan. Thin links need root; without it those runs are left out, and the report says so."""
    return build_run_plan(
        (some or Selection()).apply_to(build_experiment(full, thin=can_build_network())), data, summarize
    )


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tables; the table of findings needs all ten configurations and is left out otherwise."""
    tables = [build_configuration_table(runs), build_findings_table(runs)]
    return {"tables": [table for table in tables if table["rows"]]}
