"""Optimizer state between hosts, as users call it: `average`, `send`, `receive`, `advise`, and what they take."""

from .api import average_moments as average
from .api import receive_moments as receive
from .api import send_moments as send
from .optimizer_state import (
    AdamMoments,
    Advice,
    Averaging,
    Moments,
    Moving,
    Paired,
    PairedSum,
    advise,
    block_means,
    floored,
    for_one_host,
    for_pairs,
    in_order,
    largest_update,
    moments_of,
    moments_text,
    parse_moments,
    restored,
    transformed,
)

__all__ = [
    "average", "send", "receive", "advise", "Advice",
    "Moments", "parse_moments", "moments_of", "moments_text", "AdamMoments", "in_order", "Averaging", "Moving",
    "Paired", "PairedSum",
    "for_pairs", "for_one_host", "transformed", "restored", "largest_update", "floored", "block_means",
]  # fmt: skip
