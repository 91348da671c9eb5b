"""Every part by name, and the aggregator that a bare compressor means."""

from __future__ import annotations

from typing import Any

from .. import aggregators, compressors, controllers, feedback, topologies
from ..core import Aggregator, Compressor, adds_up, mixes

COMPRESSORS: dict[str, type[Any]] = {
    "identity": compressors.Identity,
    "cast": compressors.Cast,
    "randomk": compressors.RandomK,
    "topk": compressors.TopK,
    "threshold": compressors.Threshold,
    "adaptive": compressors.AdaptiveThreshold,
    "level_search": compressors.LevelSearch,
    "square": compressors.SquareStochastic,
    "impk": compressors.ImpK,
    "greedy": compressors.Greedy,
    "stochastic": compressors.Stochastic,
    "qsgd": compressors.QSGD,
    "maxmin": compressors.MaxMin,
    "uniform": compressors.Uniform,
    "ternary": compressors.Ternary,
    "natural": compressors.Natural,
    "power2": compressors.PowerOfTwo,
    "sign": compressors.ScaledSign,
    "svd": compressors.TruncatedSVD,
    "rsvd": compressors.RandomisedSVD,
    "projection": compressors.RandomProjection,
    "st_hosvd": compressors.STHOSVD,
    "hosvd": compressors.HOSVD,
    "tt": compressors.TensorTrain,
    "cp": compressors.CP,
}
AGGREGATORS: dict[str, type[Any]] = {
    "dense": aggregators.Dense,
    "gather": aggregators.GatherMean,
    "sum": aggregators.SumMean,
    "two_hop": aggregators.TwoHop,
    "vote": aggregators.Vote,
    "powersgd": aggregators.PowerSGD,
    "sketch": aggregators.SketchSum,
    "union": aggregators.UnionSum,
    "ring_sum": aggregators.RingSum,
    "server": aggregators.Server,
    "gossip": aggregators.Gossip,
    "choco": aggregators.Choco,
    "scheduled": aggregators.Scheduled,
    "switch": aggregators.Switch,
    "adapt": aggregators.Adapt,
    "whole": aggregators.Whole,
}
MEMORIES: dict[str, type[Any]] = {
    "ef": feedback.ErrorFeedback,
    "ef21": feedback.EF21,
    "scam": feedback.SCAM,
    "dgc": feedback.DGC,
}
TOPOLOGIES: dict[str, type[Any]] = {
    "complete": topologies.Complete,
    "ring": topologies.Ring,
    "torus": topologies.Torus,
    "exponential": topologies.Exponential,
    "hypercube": topologies.Hypercube,
    "star": topologies.Star,
    "rotating": topologies.Rotating,
    "matrix": topologies.Matrix,
}
CONTROLLERS: dict[str, type[Any]] = {
    "fixed": controllers.Fixed,
    "lgreco": controllers.LGreCo,
    "accordion": controllers.Accordion,
    "kmeans": controllers.KMeans,
    "by_size": controllers.BySize,
}
KINDS: dict[str, dict[str, type[Any]]] = {
    "compressors": COMPRESSORS,
    "aggregators": AGGREGATORS,
    "memories": MEMORIES,
    "topologies": TOPOLOGIES,
    "controllers": CONTROLLERS,
}
PARTS = COMPRESSORS | AGGREGATORS | MEMORIES | TOPOLOGIES | CONTROLLERS
SMALL = 1024  # elements: below this, positions, scales and factors cost more than they save
NAMES = {cls: name for name, cls in PARTS.items()}


def default_aggregator(compressor: Compressor) -> Aggregator[Any]:
    """Payloads that can be added on the wire are, because the cost of that does not grow with the ranks."""
    return aggregators.SumMean(compressor) if adds_up(compressor) else aggregators.GatherMean(compressor)


def uncompressed(aggregator: Aggregator[Any]) -> Aggregator[Any]:
    """The exact form of an exchange, for what is too small to compress: dense, under gossip among the same partners."""
    topology = mixes(aggregator)
    return aggregators.Dense() if topology is None else aggregators.Gossip(compressors.Identity(), topology)


def is_controller(part: Any) -> bool:
    return type(part) in CONTROLLERS.values()
