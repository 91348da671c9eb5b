"""Compression of Adam's optimizer state: m and v of a layer are one pair, with rules that keep v valid.

Public names are in `thinwire.moments`, together with `average`, `send` and `receive`, which need process groups.
"""

from .adam import AdamMoments, name_shard
from .advice import Advice, advise
from .averaging import MomentsAveraging
from .config import MomentsConfig, moments_to_text, parse_moments, resolve_moments
from .pair_aggregator import PairAggregator
from .pair_composition import build_pair_aggregator, build_pair_compressor
from .pair_compressor import PairCompressor
from .transfer import MomentsTransfer
from .transforms import apply_floor, compute_block_means, max_update, restore_v, transform_v

__all__ = [
    "advise", "Advice",
    "MomentsConfig", "parse_moments", "resolve_moments", "moments_to_text", "AdamMoments", "name_shard",
    "MomentsAveraging", "MomentsTransfer", "PairCompressor", "PairAggregator",
    "build_pair_aggregator", "build_pair_compressor",
    "transform_v", "restore_v", "max_update", "apply_floor", "compute_block_means",
]  # fmt: skip
