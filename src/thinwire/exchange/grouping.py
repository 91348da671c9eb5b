"""Grouping: which layers of an exchange are batched, because they have equal parts that can handle them in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..core import Aggregator, Context, LayerBatch, Program, ReducedBatch, TensorSpec, can_batch
from ..core.batches import reduce_one
from .memories import LayerMemories


class LayerGroup(NamedTuple):
    """Layers that are reduced by one program: a batch, or a single layer."""

    names: tuple[str, ...]
    specs: tuple[TensorSpec, ...]
    part: Aggregator[Any]
    is_batched: bool


def group_layers(names: Sequence[str], memories: LayerMemories) -> list[LayerGroup]:
    """One group for layers with equal aggregators that can batch them, and one for each other layer."""
    batches: list[tuple[Aggregator[Any], list[str]]] = []
    singles: list[str] = []
    for name in names:
        part = memories.aggregators[name]
        if memories.has_importance or not can_batch(part, memories.layers[name]):
            singles.append(name)
            continue
        batch = next((batch for other, batch in batches if other is part or other == part), None)
        if batch is None:
            batches.append((part, batch := []))
        batch.append(name)
    groups = [_make_group(batch, memories, True) for _, batch in batches]
    return groups + [_make_group([name], memories, False) for name in singles]


def _make_group(names: Sequence[str], memories: LayerMemories, is_batched: bool) -> LayerGroup:
    specs = tuple(memories.layers[name] for name in names)
    return LayerGroup(tuple(names), specs, memories.aggregators[names[0]], is_batched)


def reduce_group(part: Aggregator[Any], layers: LayerBatch, is_batched: bool, ctx: Context) -> Program[ReducedBatch]:
    """The program of a group."""
    return part.reduce_many(layers, ctx) if is_batched else reduce_one(part, layers, ctx)  # type: ignore[attr-defined]
