"""Optimizer state between hosts: what is made of Adam's m and v before a compressor sees them, and what after.

Users find it in `thinwire.moments`, together with `average`, `send` and `receive`, which need process groups.
"""

from .adam import AdamMoments, in_order
from .advice import Advice, advise
from .averaging import Averaging
from .composing import for_one_host, for_pairs
from .moving import Moving
from .pairs import Paired
from .settings import Moments, moments_of, moments_text, parse_moments
from .sums import PairedSum
from .transforms import block_means, floored, largest_update, restored, transformed

__all__ = [
    "advise", "Advice",
    "Moments", "parse_moments", "moments_of", "moments_text", "AdamMoments", "in_order", "Averaging", "Moving",
    "Paired", "PairedSum",
    "for_pairs", "for_one_host", "transformed", "restored", "largest_update", "floored", "block_means",
]  # fmt: skip
