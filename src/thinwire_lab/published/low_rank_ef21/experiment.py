"""low-rank-ef21: low-rank compressors (Rebrikov et al., 2024) on the mushrooms, with and without EF21.

One worker and ten workers. Ten workers all-gather; label-sorted ones with EF21 also use a parameter server, which is
the paper's topology.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...configuration.config import Experiment, Method, OptimizerConfig, RunGroup, TargetMetric, TaskConfig
from ...configuration.run_plan import RunPlan
from ...configuration.selection import Selection
from ...running.build_jobs import build_run_plan
from .tables import SERVER, build_convergence_table, build_expectations_table, build_traffic_table, server_label


@dataclass(frozen=True)
class LowRankMethod:
    """One row: the compressor without memory, and the one that EF21 applies to differences."""

    label: str
    text: str
    inside: str = ""  # under EF21, which needs a contraction; empty if `text` is one

    @property
    def methods(self) -> tuple[Method, Method]:
        """Without memory, and under EF21."""
        return Method(self.label, self.text), Method(f"EF21({self.label})", f"ef21({self.inside or self.text})")

    @property
    def server_method(self) -> Method:
        """Under EF21, with payloads sent to rank 0, which answers with their dense mean."""
        if self.label == "dense":
            return Method(server_label(self.label), "parameter_server(identity())")
        return Method(server_label(self.methods[1].label), f"ef21(parameter_server({self.inside or self.text}))")


FIVE = "dims=(7, 2, 2, 2, 2)"
METHODS = (
    LowRankMethod("dense", "dense()"),
    LowRankMethod("Top-17", "topk(k=17)"),
    LowRankMethod("Top-28", "topk(k=28)"),
    LowRankMethod("Random-22", "randomk(k=22)", "randomk(k=22, scaled=false)"),
    LowRankMethod("QSGD 4 bits", "qsgd(bits=4)"),
    LowRankMethod("natural", "natural()"),
    LowRankMethod("SVD 1", "svd(rank=1, dims=(14, 8))"),
    LowRankMethod("randomised SVD 1", "rsvd(rank=1, dims=(14, 8))"),
    LowRankMethod("projection 3", "projection(rank=3, dims=(14, 8))", "projection(rank=3, dims=(14, 8), scaled=false)"),
    LowRankMethod("HOSVD", f"hosvd({FIVE}, ranks=(1, 1, 2, 1, 1))"),
    LowRankMethod("ST-HOSVD", f"st_hosvd({FIVE}, ranks=(1, 1, 2, 1, 1))"),
    LowRankMethod("tensor train 1", f"tensor_train(rank=1, {FIVE})"),
    LowRankMethod("PowerSGD 1", "powersgd(rank=1, dims=(14, 8), min_saving=1.0)"),
)
NOT_CONTRACTIVE = (  # unbiased with omega above 1: not contractions
    Method("EF21(Random-22, scaled)", "ef21(randomk(k=22))"),
    Method("EF21(projection 3, scaled)", "ef21(projection(rank=3, dims=(14, 8)))"),
)
# PowerSGD sums its factors on the wire, so there is no payload that a server could decode
SERVER_METHODS = tuple(method.server_method for method in METHODS if method.label != "PowerSGD 1")
WORLDS = (("1 worker", 1, "iid"), ("10 iid workers", 10, "iid"), ("10 label-sorted workers", 10, "label-sorted"))


def _build_groups() -> tuple[RunGroup, ...]:
    """Build seven groups, so that no chart has more curves than methods."""
    pairs = [method.methods for method in METHODS]
    dense = METHODS[0].label
    without_memory = tuple(plain.label for plain, _ in pairs)
    with_ef21 = (dense, *(ef21.label for _, ef21 in pairs[1:]), *(method.label for method in NOT_CONTRACTIVE))
    gathered = tuple(
        RunGroup(f"{title}, {memory}", workers, split, methods=labels)
        for title, workers, split in WORLDS
        for memory, labels in (("without memory", without_memory), ("EF21", with_ef21))
    )
    return (*gathered, RunGroup(SERVER, 10, "label-sorted", methods=tuple(method.label for method in SERVER_METHODS)))


EXPERIMENT = Experiment(
    name="low-rank-ef21",
    title="low-rank-ef21: low-rank compressors, with and without EF21",
    description=(
        "Protocol of Rebrikov et al. (2024). Mushrooms data set, a fifth of the rows held out for accuracy. Logistic "
        "regression with ridge 0.0259, a hundredth of the loss's smoothness (the paper takes a hundredth of an L that "
        "lacks the factor 1/4), from x = 0, 600 steps of size 1/L for every method, with the true L of the training "
        "rows. The 112 weights are reshaped to 14 × 8 or 7 × 2 × 2 × 2 × 2. EF21 needs contractive compressors, so "
        "Random-k and the projection are not scaled under it (scaled forms are run as well); QSGD and natural "
        "compression are used unchanged. Additive payloads (dense, Random-k, projection, PowerSGD) are all-reduced, "
        "others are all-gathered: each worker sends its payload to nine others. In the last group, as in the paper, "
        "workers send to a server, rank 0, which answers with the dense mean; wire bytes of that group are the "
        "server's, and the table of bytes has a worker's."
    ),
    # 0.1999 leaves 6500 rows: ten workers have equally many, so that their mean gradient is the full gradient
    task=TaskConfig("logistic", {"ridge": 0.0259, "held_out": 0.1999}),
    groups=_build_groups(),
    methods=(
        *(m for method in METHODS for m in method.methods if m.label != "EF21(dense)"),
        *NOT_CONTRACTIVE,
        *SERVER_METHODS,
    ),
    optimizer=OptimizerConfig(lr="1/L"),
    steps=600,
    target=TargetMetric("train_loss", 0.22),  # the optimum is at 0.2158
    log_every=10,
    checkpoint_every=600,
)


def build_experiment(full: bool = False) -> Experiment:
    """There is one size only."""
    return EXPERIMENT


def build_plan(
    full: bool = False, data: str | None = None, some: Selection | None = None, experiment: Experiment = EXPERIMENT
) -> RunPlan:
    return build_run_plan((some or Selection()).apply_to(experiment), finish=None if some else summarize)


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tables of convergence, traffic and expectations."""
    labels = [method.label for method in METHODS]
    worlds = [title for title, _, _ in WORLDS]
    return {
        "tables": [
            build_convergence_table(runs, labels, worlds),
            build_traffic_table(runs, labels),
            build_expectations_table(runs),
        ]
    }
