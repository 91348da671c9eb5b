"""Every part of this package by name, and the aggregator that a bare compressor means.

A new part is one line here. Its examples are what the contract suites run over.
"""

from __future__ import annotations

from typing import Any

from .. import aggregators, compressors, controllers, feedback, topologies
from ..core import Aggregator, Compressor, Controller, is_additive, topology_of
from .registry import REGISTRY, Entry

DENSE_BELOW = 1024  # elements: below this, positions, scales and factors cost more than they save

BUILT_IN = (
    Entry("identity", compressors.Identity, "compressor"),
    Entry("cast", compressors.Cast, "compressor", examples=('dtype="bf16"', 'dtype="fp16"', 'dtype="fp32"')),
    Entry(
        "randomk",
        compressors.RandomK,
        "compressor",
        typical=("density=0.01",),
        examples=("density=0.25", "density=0.25, scaled=false", "k=2", "density=0.5, values=natural()"),
    ),
    Entry(
        "topk",
        compressors.TopK,
        "compressor",
        typical=("density=0.01",),
        examples=(
            "density=0.1",
            "k=3",
            'density=0.2, values="bf16"',
            "density=0.2, values=natural()",
            'density=0.2, values=nearest_power2(metric="log")',
            "density=0.3, values=qsgd(bits=8, block=16)",
            "density=0.1, values=uniform(bits=2)",
        ),
    ),
    Entry(
        "threshold",
        compressors.Threshold,
        "compressor",
        typical=("tau=2.576",),
        examples=("tau=0.5", 'count=4, values="bf16"'),
    ),
    Entry(
        "quantile_threshold",
        compressors.QuantileThreshold,
        "compressor",
        examples=("density=0.1", "density=0.1, sample_fraction=0.3"),
    ),
    Entry(
        "level_threshold",
        compressors.LevelThreshold,
        "compressor",
        examples=("", "sparsity=0.5, values=qsgd(bits=2, block=16)"),
    ),
    Entry(
        "energy_sampling",
        compressors.EnergySampling,
        "compressor",
        typical=("density=0.01",),
        examples=("density=0.1",),
    ),
    Entry(
        "impk",
        compressors.ImpK,
        "compressor",
        typical=("density=0.01",),
        examples=("density=0.1", 'k=3, weights="plain", values=nearest_power2(metric="log")'),
    ),
    Entry(
        "importance_topk",
        compressors.ImportanceTopK,
        "compressor",
        typical=("density=0.01",),
        examples=("density=0.1", 'density=0.2, weights="normalized", pool_factor=2.0, values="bf16"'),
    ),
    Entry(
        "importance_sampling",
        compressors.ImportanceSampling,
        "compressor",
        typical=("density=0.01",),
        examples=(
            "density=0.1",
            "density=0.2, poisson=true",
            "density=0.25, poisson=true, uniform_fraction=0.5, values=natural()",
        ),
    ),
    Entry(
        "qsgd",
        compressors.QSGD,
        "compressor",
        examples=("", "bits=2, block=8", "bits=9, block=64", "norm='l2'", "bits=3, block=20, norm='l2'"),
    ),
    Entry(
        "minmax",
        compressors.MinMax,
        "compressor",
        examples=("", "bits=1, block=7", 'bits=8, block=64, rounding="nearest"'),
    ),
    Entry(
        "uniform",
        compressors.Uniform,
        "compressor",
        examples=("", "bits=2, block=10", 'bits=4, block=50, rounding="stochastic"'),
    ),
    Entry("ternary", compressors.Ternary, "compressor", examples=("", "block=9")),
    Entry("natural", compressors.Natural, "compressor", examples=("", "bits=8")),
    Entry(
        "nearest_power2",
        compressors.NearestPower2,
        "compressor",
        examples=("", 'metric="log"', 'metric="log", max_exponent=0'),
    ),
    Entry("sign", compressors.ScaledSign, "compressor"),
    Entry("svd", compressors.TruncatedSVD, "compressor", examples=("rank=1", "rank=2, dims=(6, 4)")),
    Entry("rsvd", compressors.RandomizedSVD, "compressor", examples=("rank=2",)),
    Entry("projection", compressors.RandomProjection, "compressor", examples=("rank=1", "rank=2, scaled=false")),
    Entry(
        "st_hosvd",
        compressors.STHOSVD,
        "compressor",
        typical=("rank=4",),
        examples=("rank=1", "ranks=(1, 2, 1), dims=(6, 2, 2)"),
    ),
    Entry("hosvd", compressors.HOSVD, "compressor", typical=("rank=4",), examples=("rank=2",)),
    Entry(
        "tensor_train",
        compressors.TensorTrain,
        "compressor",
        typical=("rank=4",),
        examples=("rank=1", "max_error=0.3, dims=(2, 3, 4)"),
    ),
    Entry("cp", compressors.CP, "compressor", examples=("rank=1, sweeps=3",)),
    Entry("dense", aggregators.Dense, "aggregator"),
    Entry("gather", aggregators.GatherMean, "aggregator", examples=("identity()", "randomk(density=0.25)")),
    Entry("sum", aggregators.SumMean, "aggregator", examples=("identity()",)),
    Entry("two_hop", aggregators.TwoHop, "aggregator", examples=("qsgd()", "topk(density=0.1)")),
    Entry("vote", aggregators.Vote, "aggregator"),
    Entry(
        "powersgd",
        aggregators.PowerSGD,
        "aggregator",
        examples=("rank=1", 'rank=2, subtract="mean", min_saving=1.0', "rank=1, alternate=true"),
    ),
    Entry(
        "sketch",
        aggregators.SketchSum,
        "aggregator",
        examples=(
            "identity()",
            "topk(density=0.1), cells=0.7",
            "topk(k=2), lanes=2",
            "randomk(density=0.2), cells=0.4, exact=true",
            'topk(density=0.1), index="bloom", false_positive_rate=0.1, exact=true',
        ),
    ),
    Entry("union", aggregators.UnionSum, "aggregator", examples=("qsgd()",)),
    Entry("ring_all_reduce", aggregators.RingAllReduce, "aggregator"),
    Entry(
        "parameter_server",
        aggregators.ParameterServer,
        "aggregator",
        examples=("identity()", "topk(density=0.1), downlink=qsgd(), shards=2"),
    ),
    Entry(
        "gossip",
        aggregators.Gossip,
        "aggregator",
        examples=(
            "identity(), ring()",
            "identity(), complete()",
            "threshold(tau=0.5), rotating()",
            "qsgd(), rotating(pair=true)",
            'topk(density=0.1), star(), self_term="exact"',
        ),
    ),
    Entry(
        "choco",
        aggregators.Choco,
        "aggregator",
        examples=("topk(density=0.1), ring()", "qsgd(), exponential(), gamma=0.5"),
    ),
    Entry("scheduled", aggregators.Scheduled, "aggregator", examples=('two_hop(topk(k=3)), shape="dgc", steps=10',)),
    Entry("switch", aggregators.Switch, "aggregator", examples=("topk(density=0.1), dense()",)),
    Entry(
        "adapt",
        aggregators.Adapt,
        "aggregator",
        examples=(
            'powersgd(rank=2, min_saving=1.0), qsgd(), controller=lgreco(every=2, start=1, errors_from="rank0")',
        ),
    ),
    Entry("flatten", aggregators.Flatten, "aggregator", examples=("topk(density=0.1)",)),
    Entry(
        "ef",
        feedback.ErrorFeedback,
        "memory",
        examples=("dense()", 'topk(density=0.1), residual_dtype="bf16"', 'qsgd(), residual_dtype="int8"'),
    ),
    Entry(
        "ef21",
        feedback.EF21,
        "memory",
        examples=("dense()", "topk(density=0.1)", 'topk(k=3, values="bf16")', "sign()", "nearest_power2()"),
    ),
    Entry(
        "scam",
        feedback.SCAM,
        "memory",
        examples=("topk(density=0.1)", "topk(density=0.1), reset_selected=true", "topk(k=3), decay=0.9"),
    ),
    Entry(
        "dgc",
        feedback.DGC,
        "memory",
        examples=("topk(density=0.1)", "topk(density=0.1), momentum=0.5, masking=false, clip=1.0"),
    ),
    Entry("complete", topologies.Complete, "topology"),
    Entry("ring", topologies.Ring, "topology"),
    Entry("torus", topologies.Torus, "topology"),
    Entry(
        "exponential", topologies.Exponential, "topology", typical=("", "one_peer=true"), examples=("", "one_peer=true")
    ),
    Entry("hypercube", topologies.Hypercube, "topology", typical=("", "one_peer=true"), examples=("", "one_peer=true")),
    Entry("star", topologies.Star, "topology"),
    Entry("rotating", topologies.Rotating, "topology", examples=("", "pair=true")),
    Entry("matrix", topologies.Matrix, "topology", examples=("rows=((0.5, 0.5), (0.5, 0.5))",)),
    Entry("fixed", controllers.Fixed, "controller", examples=("default=1",)),
    Entry(
        "lgreco",
        controllers.LGreCo,
        "controller",
        examples=("every=2, start=2, window=1", "every=2, start=4, defaults_from=accordion(every=2)"),
    ),
    Entry("accordion", controllers.Accordion, "controller", examples=("every=2",)),
    Entry("kmeans", controllers.KMeans, "controller", examples=("every=2, start=2",)),
    Entry("by_size", controllers.BySize, "controller", examples=('min_numel=20, exclude=("b*",)',)),
)
for _entry in BUILT_IN:
    REGISTRY.add(_entry)


def default_aggregator(compressor: Compressor) -> Aggregator[Any]:
    """Payloads that can be added on the wire are, because the cost of that does not grow with the ranks."""
    return aggregators.SumMean(compressor) if is_additive(compressor) else aggregators.GatherMean(compressor)


def uncompressed(aggregator: Aggregator[Any]) -> Aggregator[Any]:
    """The exact form of an exchange, for what is too small to compress: dense, under gossip among the same partners."""
    topology = topology_of(aggregator)
    return aggregators.Dense() if topology is None else aggregators.Gossip(compressors.Identity(), topology)


def is_controller(part: Any) -> bool:
    """Whether it chooses for layers: a registered controller, or an object that keeps the protocol."""
    return isinstance(part, Controller)
