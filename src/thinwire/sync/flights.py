"""Rounds that are under way, and the groups of layers that take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..core import CompositionError, TensorSpec


@dataclass(eq=False)
class Flight:
    """One round of one fragment, from when its weights were read until its answer is merged."""

    fragment: int
    number: int  # of all flights, in the order they began
    merge_step: int
    given: Mapping[str, Tensor] = field(default_factory=dict)  # dropped when it has been answered
    values: dict[str, Tensor] = field(default_factory=dict)  # empty until it has
    good: bool = True
    lr: float | None = None  # when its weights were read; the worker's own may have changed since

    def state_dict(self) -> dict[str, Any]:
        return {
            "fragment": self.fragment, "number": self.number, "merge_step": self.merge_step,
            "good": int(self.good), "values": dict(self.values),
        }  # fmt: skip

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Flight:
        fragment, number, merge = (int(state[name]) for name in ("fragment", "number", "merge_step"))
        values = {name: value.clone() for name, value in state["values"].items()}
        return cls(fragment, number, merge, {}, values, bool(state["good"]))


def fragments_of(layers: Sequence[TensorSpec], count: int) -> list[list[str]]:
    """Names of neighbouring layers in `count` groups of about as many numbers; none is empty."""
    if count > len(layers):
        raise CompositionError(f"local: {count} fragments of {len(layers)} layers cannot be; {len(layers)} is the most")
    whole = sum(layer.numel for layer in layers)
    found: list[list[str]] = [[]]
    before = 0
    for at, layer in enumerate(layers):
        left, groups_left = len(layers) - at, count - len(found)
        full = before >= whole * len(found) / count
        if found[-1] and groups_left and (full or left <= groups_left):
            found.append([])
        found[-1].append(layer.name)
        before += layer.numel
    return found


def staggered(period: int, count: int, overlap: bool = False) -> list[int]:
    """Local steps each fragment is taken to have made already, so that their rounds come evenly.

    The first has none; with overlap it has one, because Algorithm 1 (Tolstobrov, 2022) averages in iteration k = p, and
    what it averages are the weights of iteration k - 1: they depart after p - 1 steps, then after every p.
    """
    return [int(overlap) + at * period // count for at in range(count)]
