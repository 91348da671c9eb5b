"""tour: every part of the catalog once, on a logistic regression: what it sends and how it converges."""

from __future__ import annotations

from ..configuration.config import Experiment, Method, OptimizerConfig, RunGroup, TargetMetric, TaskConfig
from ..configuration.run_plan import RunPlan
from ..running.build_jobs import build_run_plan

SPARSE = (
    Method("Random-k 25 %", "randomk(density=0.25)"),
    Method("Top-k 10 %", "topk(density=0.1)"),
    Method("threshold 0.02", "threshold(tau=0.02)"),
    Method("quantile 10 %", "quantile_threshold(density=0.1, sample_fraction=0.5)"),
    Method("level threshold", "level_threshold(sparsity=0.8)"),
    Method("energy sampling 10 %", "energy_sampling(density=0.1)"),
    Method("ImpK 5 %, w = 1", "impk(density=0.05)"),
    Method("importance Top-k 20 %, w = 1", "importance_topk(density=0.2)"),
    Method("Poisson 25 %, w = 1", "importance_sampling(density=0.25, poisson=true)"),
    Method("falling density", "ef(scheduled(topk(density=0.1), start=0.5, end=0.02, steps=120))"),
)
QUANTIZED = (
    Method("bf16", 'cast(dtype="bf16")'),
    Method("QSGD 4 bits", "qsgd(bits=4)"),
    Method("QSGD 4 bits, L2", 'qsgd(bits=4, norm="l2")'),
    Method("min-max 4 bits", "minmax(bits=4)"),
    Method("uniform 4 bits", "uniform(bits=4)"),
    Method("ternary", "ternary()"),
    Method("natural 9 bits", "natural()"),
    Method("natural 8 bits", "natural(bits=8)"),
    Method("power of two", "nearest_power2()"),
    Method("sign", "sign()"),
)
WITH_MEMORY = (
    Method("EF(Top-k 10 %)", "ef(topk(density=0.1))"),
    Method("EF(Top-k, 2 bits)", 'ef(topk(density=0.1, values=uniform(bits=2)), residual_dtype="bf16")'),
    Method("EF21(Top-k 10 %)", "ef21(topk(density=0.1))"),
    Method("SCAM(Top-k 10 %)", "scam(topk(density=0.1))"),
    Method("DGC(Top-k 10 %)", "dgc(topk(density=0.1), momentum=0.5)"),
    Method("EF(sign)", "ef(sign())"),
    Method("EF(whole Top-k 10 %)", "ef(flatten(topk(density=0.1)))"),
    Method("EF(L-GreCo)", "ef(adapt(topk(density=0.1), qsgd(bits=4), controller=lgreco(every=50, start=20)))"),
)
AGGREGATED = (
    Method("vote", "vote()"),
    Method("EF(two-hop Top-k)", "ef(two_hop(topk(density=0.1)))"),
    Method("two-hop QSGD", "two_hop(qsgd(bits=4))"),
    Method("EF(union of Top-k)", "ef(union(topk(density=0.1)))"),
    Method("EF(sketch of Top-k 5 %)", "ef(sketch(topk(density=0.05)))"),
    Method("round a ring", "ring_all_reduce()"),
    Method("EF(server, Top-k)", "ef(parameter_server(topk(density=0.1)))"),
    Method("EF(gossip of Top-k)", "ef(gossip(topk(density=0.1), ring()))"),
    Method("CHOCO of weights", 'local(sync_every=1, payload="weights", composition=choco(topk(density=0.1), ring()))'),
)
FACTORIZED = (
    Method("SVD rank 1", "svd(rank=1, dims=(14, 8))"),
    Method("EF21(SVD rank 1)", "ef21(svd(rank=1, dims=(14, 8)))"),
    Method("EF(randomised SVD)", "ef(rsvd(rank=1, dims=(14, 8)))"),
    Method("random projection", "projection(rank=4, dims=(14, 8))"),
    Method("EF21(ST-HOSVD)", "ef21(st_hosvd(dims=(7, 2, 2, 2, 2), ranks=(1, 1, 2, 1, 1)))"),
    Method("EF21(HOSVD)", "ef21(hosvd(dims=(7, 2, 2, 2, 2), ranks=(1, 1, 2, 1, 1)))"),
    Method("EF(tensor train)", "ef(tensor_train(rank=2, dims=(7, 4, 4)))"),
    Method("EF(CP rank 1)", "ef(cp(rank=1, sweeps=2, dims=(7, 4, 4)))"),
    Method("EF(PowerSGD rank 1)", "ef(powersgd(rank=1, dims=(14, 8)))"),
)
FEW = ("dense", "Random-k 25 %", "Top-k 10 %", "EF(Top-k 10 %)", "QSGD 4 bits", "EF(sign)")


def _labels(methods: tuple[Method, ...]) -> tuple[str, ...]:
    return ("dense", *(method.label for method in methods))


TOUR = Experiment(
    name="tour",
    title="Every part, on a logistic regression",
    description=(
        "Mushrooms (8124 × 112), edible or not. In the first three tables each of ten workers sees one label only, and "
        "methods without error feedback fall behind. All methods take the same number of steps of the "
        "same length; what differs is what they send. The layer is tiny, so headers weigh more than in real models."
    ),
    task=TaskConfig("logistic"),
    groups=(
        RunGroup("10 label-sorted workers: sparse", 10, "label-sorted", methods=_labels(SPARSE)),
        RunGroup("10 label-sorted workers: quantised", 10, "label-sorted", methods=_labels(QUANTIZED)),
        RunGroup("10 label-sorted workers: with memory", 10, "label-sorted", methods=_labels(WITH_MEMORY)),
        RunGroup("10 label-sorted workers: factorised", 10, "label-sorted", methods=_labels(FACTORIZED)),
        RunGroup(
            "4 workers: aggregators and topologies", 4, methods=(*_labels(AGGREGATED), "EF(Top-k 10 %)", "QSGD 4 bits")
        ),
        RunGroup("2 workers, lockstep", 2, methods=FEW),
        RunGroup("2 workers, real processes", 2, driver="processes", methods=FEW),
    ),
    methods=(Method("dense", "dense()"), *SPARSE, *QUANTIZED, *WITH_MEMORY, *FACTORIZED, *AGGREGATED),
    optimizer=OptimizerConfig(lr="1/L"),
    steps=150,
    target=TargetMetric("loss", 0.1),
    checkpoint_every=150,
)


def build_plan(full: bool = False, data: str | None = None) -> RunPlan:
    return build_run_plan(TOUR)
