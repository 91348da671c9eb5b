"""All parts of this package by name, and the default aggregator of a compressor.

A new part is one line here. The contract suites run over its examples.
"""

from __future__ import annotations

from typing import Any

from .. import aggregators, compressors, controllers, feedback, topologies
from ..core import Aggregator, Compressor, Controller, is_additive, topology_of
from .registry import REGISTRY, Registration

DENSE_BELOW = 1024  # elements: below this, positions, scales and factors cost more than they save

BUILT_IN = (
    Registration("identity", compressors.Identity, "compressor"),
    Registration("cast", compressors.Cast, "compressor", examples=('dtype="bf16"', 'dtype="fp16"', 'dtype="fp32"')),
    Registration(
        "randomk",
        compressors.RandomK,
        "compressor",
        typical=("density=0.01",),
        examples=("density=0.25", "density=0.25, scaled=false", "k=2", "density=0.5, values=natural()"),
    ),
    Registration(
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
    Registration(
        "threshold",
        compressors.Threshold,
        "compressor",
        typical=("tau=2.576",),
        examples=("tau=0.5", 'count=4, values="bf16"'),
    ),
    Registration(
        "quantile_threshold",
        compressors.QuantileThreshold,
        "compressor",
        examples=("density=0.1", "density=0.1, sample_fraction=0.3"),
    ),
    Registration(
        "level_threshold",
        compressors.LevelThreshold,
        "compressor",
        examples=("", "sparsity=0.5, values=qsgd(bits=2, block=16)"),
    ),
    Registration(
        "energy_sampling",
        compressors.EnergySampling,
        "compressor",
        typical=("density=0.01",),
        examples=("density=0.1",),
    ),
    Registration(
        "impk",
        compressors.ImpK,
        "compressor",
        typical=("density=0.01",),
        examples=("density=0.1", 'k=3, weights="plain", values=nearest_power2(metric="log")'),
    ),
    Registration(
        "importance_topk",
        compressors.ImportanceTopK,
        "compressor",
        typical=("density=0.01",),
        examples=("density=0.1", 'density=0.2, weights="normalized", pool_factor=2.0, values="bf16"'),
    ),
    Registration(
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
    Registration(
        "qsgd",
        compressors.QSGD,
        "compressor",
        examples=("", "bits=2, block=8", "bits=9, block=64", "norm='l2'", "bits=3, block=20, norm='l2'"),
    ),
    Registration(
        "minmax",
        compressors.MinMax,
        "compressor",
        examples=("", "bits=1, block=7", 'bits=8, block=64, rounding="nearest"'),
    ),
    Registration(
        "uniform",
        compressors.Uniform,
        "compressor",
        examples=("", "bits=2, block=10", 'bits=4, block=50, rounding="stochastic"'),
    ),
    Registration("ternary", compressors.Ternary, "compressor", examples=("", "block=9")),
    Registration("natural", compressors.Natural, "compressor", examples=("", "bits=8")),
    Registration(
        "nearest_power2",
        compressors.NearestPower2,
        "compressor",
        examples=("", 'metric="log"', 'metric="log", max_exponent=0'),
    ),
    Registration("sign", compressors.ScaledSign, "compressor"),
    Registration("svd", compressors.TruncatedSVD, "compressor", examples=("rank=1", "rank=2, dims=(6, 4)")),
    Registration("rsvd", compressors.RandomizedSVD, "compressor", examples=("rank=2",)),
    Registration("projection", compressors.RandomProjection, "compressor", examples=("rank=1", "rank=2, scaled=false")),
    Registration(
        "st_hosvd",
        compressors.STHOSVD,
        "compressor",
        typical=("rank=4",),
        examples=("rank=1", "ranks=(1, 2, 1), dims=(6, 2, 2)"),
    ),
    Registration("hosvd", compressors.HOSVD, "compressor", typical=("rank=4",), examples=("rank=2",)),
    Registration(
        "tensor_train",
        compressors.TensorTrain,
        "compressor",
        typical=("rank=4",),
        examples=("rank=1", "max_error=0.3, dims=(2, 3, 4)"),
    ),
    Registration("cp", compressors.CP, "compressor", examples=("rank=1, sweeps=3",)),
    Registration("dense", aggregators.Dense, "aggregator"),
    Registration("gather", aggregators.GatherMean, "aggregator", examples=("identity()", "randomk(density=0.25)")),
    Registration("sum", aggregators.SumMean, "aggregator", examples=("identity()",)),
    Registration("two_hop", aggregators.TwoHop, "aggregator", examples=("qsgd()", "topk(density=0.1)")),
    Registration("vote", aggregators.Vote, "aggregator"),
    Registration(
        "powersgd",
        aggregators.PowerSGD,
        "aggregator",
        examples=("rank=1", 'rank=2, subtract="mean", min_saving=1.0', "rank=1, alternate=true"),
    ),
    Registration(
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
    Registration("union", aggregators.UnionSum, "aggregator", examples=("qsgd()",)),
    Registration("ring_all_reduce", aggregators.RingAllReduce, "aggregator"),
    Registration(
        "parameter_server",
        aggregators.ParameterServer,
        "aggregator",
        examples=("identity()", "topk(density=0.1), downlink=qsgd(), shards=2"),
    ),
    Registration(
        "gossip",
        aggregators.Gossip,
        "aggregator",
        examples=(
            "identity(), ring()",
            "identity(), complete()",
            "threshold(tau=0.5), rotating()",
            "qsgd(), rotating(equal_pairs=true)",
            'topk(density=0.1), star(), self_term="exact"',
        ),
    ),
    Registration(
        "choco",
        aggregators.Choco,
        "aggregator",
        examples=("topk(density=0.1), ring()", "qsgd(), exponential(), gamma=0.5"),
    ),
    Registration(
        "scheduled", aggregators.DensitySchedule, "aggregator", examples=('two_hop(topk(k=3)), shape="dgc", steps=10',)
    ),
    Registration("switch", aggregators.Switch, "aggregator", examples=("topk(density=0.1), dense()",)),
    Registration(
        "adapt",
        aggregators.Adapt,
        "aggregator",
        examples=(
            'powersgd(rank=2, min_saving=1.0), qsgd(), controller=lgreco(every=2, start=1, errors_from="rank0")',
        ),
    ),
    Registration("flatten", aggregators.Flatten, "aggregator", examples=("topk(density=0.1)",)),
    Registration(
        "ef",
        feedback.ErrorFeedback,
        "memory",
        examples=("dense()", 'topk(density=0.1), residual_dtype="bf16"', 'qsgd(), residual_dtype="int8"'),
    ),
    Registration(
        "ef21",
        feedback.EF21,
        "memory",
        examples=("dense()", "topk(density=0.1)", 'topk(k=3, values="bf16")', "sign()", "nearest_power2()"),
    ),
    Registration(
        "scam",
        feedback.SCAM,
        "memory",
        examples=("topk(density=0.1)", "topk(density=0.1), reset_selected=true", "topk(k=3), decay=0.9"),
    ),
    Registration(
        "dgc",
        feedback.DGC,
        "memory",
        examples=("topk(density=0.1)", "topk(density=0.1), momentum=0.5, masking=false, clip=1.0"),
    ),
    Registration("complete", topologies.Complete, "topology"),
    Registration("ring", topologies.Ring, "topology"),
    Registration("torus", topologies.Torus, "topology"),
    Registration(
        "exponential", topologies.Exponential, "topology", typical=("", "one_peer=true"), examples=("", "one_peer=true")
    ),
    Registration(
        "hypercube", topologies.Hypercube, "topology", typical=("", "one_peer=true"), examples=("", "one_peer=true")
    ),
    Registration("star", topologies.Star, "topology"),
    Registration("rotating", topologies.Rotating, "topology", examples=("", "equal_pairs=true")),
    Registration("matrix", topologies.Matrix, "topology", examples=("rows=((0.5, 0.5), (0.5, 0.5))",)),
    Registration("fixed", controllers.Fixed, "controller", examples=("default=1",)),
    Registration(
        "lgreco",
        controllers.LGreCo,
        "controller",
        examples=("every=2, start=2, window=1", "every=2, start=4, defaults_from=accordion(every=2)"),
    ),
    Registration("accordion", controllers.Accordion, "controller", examples=("every=2",)),
    Registration("kmeans", controllers.KMeans, "controller", examples=("every=2, start=2",)),
    Registration("by_size", controllers.BySize, "controller", examples=('min_numel=20, exclude=("b*",)',)),
)
for _registration in BUILT_IN:
    REGISTRY.add(_registration)


def default_aggregator(compressor: Compressor) -> Aggregator[Any]:
    """Sum additive payloads on the wire, since its cost does not grow with the ranks; gather all others."""
    return aggregators.SumMean(compressor) if is_additive(compressor) else aggregators.GatherMean(compressor)


def without_compression(aggregator: Aggregator[Any]) -> Aggregator[Any]:
    """The exact form of an aggregator, for small layers: dense, or gossip among the same neighbors."""
    topology = topology_of(aggregator)
    return aggregators.Dense() if topology is None else aggregators.Gossip(compressors.Identity(), topology)


def is_controller(part: Any) -> bool:
    """Whether a part implements the protocol of controllers."""
    return isinstance(part, Controller)
