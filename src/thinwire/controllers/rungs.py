"""Entries by what they send: which of a menu is nearest to so many bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import Aggregator, Context, Menu, TensorSpec, wraps_compressor
from .prices import cost_table


def of_one_kind(menu: Menu) -> list[int]:
    """The entries that differ from the reference in a number only; all of them if it is alone of its kind."""
    kinds = [_kind(entry) for entry in menu.entries]
    alike = [at for at, kind in enumerate(kinds) if kind == kinds[menu.reference]]
    return alike if len(alike) > 1 else list(range(len(menu.entries)))


def _kind(entry: Aggregator[Any]) -> tuple[type, ...]:
    return (type(entry), type(entry.compressor)) if wraps_compressor(entry) else (type(entry),)


def nearest(costs: Tensor, among: Sequence[int], wanted: float) -> int:
    """The entry that costs nearest to what is wanted; of equals the first."""
    return min(among, key=lambda at: (abs(float(costs[at]) - wanted), at))


def low_and_high(spec: TensorSpec, menu: Menu, low: float, high: float, ctx: Context) -> tuple[int, int]:
    """The entries for low and for high compression: near so many times the reference's bytes.

    Of a menu of two: the dearer and the cheaper.
    """
    nothing = torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)
    (costs,) = cost_table(((spec, menu),), [nothing], ctx)
    if len(menu.entries) == 2:
        dearer = int(costs[1] > costs[0])
        return dearer, 1 - dearer
    among, own = of_one_kind(menu), float(costs[menu.reference])
    return nearest(costs, among, low * own), nearest(costs, among, high * own)
