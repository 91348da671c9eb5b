"""Search a menu by bytes: the option with the cost nearest to a given number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import Aggregator, Menu, wraps_compressor


def same_method_options(menu: Menu) -> list[int]:
    """Options that differ from the default in a number only; all options if no other one does."""
    methods = [_method(option) for option in menu.options]
    same = [at for at, method in enumerate(methods) if method == methods[menu.default]]
    return same if len(same) > 1 else list(range(len(menu.options)))


def _method(option: Aggregator[Any]) -> tuple[type, ...]:
    return (type(option), type(option.compressor)) if wraps_compressor(option) else (type(option),)


def find_nearest_option(costs: Sequence[float], among: Sequence[int], num_bytes: float) -> int:
    """The option with the cost nearest to so many bytes; of equals the first."""
    return min(among, key=lambda at: (abs(costs[at] - num_bytes), at))


def low_and_high_compression(
    costs: Sequence[float], default: int, among: Sequence[int], low: float, high: float
) -> tuple[int, int]:
    """The options for low and for high compression: nearest to so many times the default's bytes.

    Of a menu of two options: the one of more bytes, and the other.

    Args:
        costs: bytes of each option.
        default: an option.
        among: options that may be chosen if there are more than two.
        low: times the default's bytes.
        high: likewise.
    """
    if len(costs) == 2:
        larger = int(costs[1] > costs[0])
        return larger, 1 - larger
    return find_nearest_option(costs, among, low * costs[default]), find_nearest_option(
        costs, among, high * costs[default]
    )
