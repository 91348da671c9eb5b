"""Optimizer state between hosts: what is made of Adam's m and v before a compressor sees them, and what after.

`average`, `send`, `receive` and `advise` are what a user calls. The first three need process groups, so they are put
together in `thinwire.api` and found here by name.
"""

from importlib import import_module
from typing import Any

from .adam import AdamMoments, in_order
from .advice import Advice, advise
from .averaging import Averaging
from .composing import for_one_host, for_pairs
from .moving import Moving
from .pairs import Paired
from .settings import Moments, moments_of, moments_text, parse_moments
from .sums import PairedSum
from .transforms import block_means, floored, largest_update, restored, transformed

_ELSEWHERE = {"average": "average_moments", "send": "send_moments", "receive": "receive_moments"}

__all__ = [
    "advise", "Advice",
    "Moments", "parse_moments", "moments_of", "moments_text", "AdamMoments", "in_order", "Averaging", "Moving",
    "Paired", "PairedSum",
    "for_pairs", "for_one_host", "transformed", "restored", "largest_update", "floored", "block_means",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module 'thinwire.moments' has no attribute {name!r}")
    return getattr(import_module("..api", __name__), _ELSEWHERE[name])
