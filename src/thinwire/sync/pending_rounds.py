"""Rounds that were started and not merged yet, their stored form, and the fragments that are synchronized in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from ..core import CompositionError, TensorSpec, mean_state, require_keys

STORED = (
    "exchanger", "anchor", "momentum", "steps_since_sync", "pending_rounds", "rounds_started", "rounds", "bad_in_a_row",
    "full_averages",
)  # fmt: skip


class MergeResult(NamedTuple):
    """The outcome of a round on this rank."""

    names: list[str]
    good: bool
    rolled_back: bool  # this rank's weights were not finite and were reset to its anchors


@dataclass(eq=False)
class PendingRound:
    """One round of one fragment, from reading its weights until its result is merged."""

    fragment: int
    number: int  # of all rounds, in the order they were started
    merge_step: int
    payload: Mapping[str, Tensor] = field(default_factory=dict)  # what is exchanged; dropped once it is answered
    values: dict[str, Tensor] = field(default_factory=dict)  # the average; empty until it is answered
    good: bool = True
    lr: float | None = None  # when its weights were read; the worker's own may have changed since

    def state_dict(self) -> dict[str, Any]:
        """The fields of a round that was answered."""
        return {
            "fragment": self.fragment, "number": self.number, "merge_step": self.merge_step,
            "good": int(self.good), "values": dict(self.values),
        }  # fmt: skip

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PendingRound:
        """The round of a stored state."""
        fragment, number, merge = (int(state[name]) for name in ("fragment", "number", "merge_step"))
        values = {name: value.clone() for name, value in state["values"].items()}
        return cls(fragment, number, merge, {}, values, bool(state["good"]))


def split_fragments(layers: Sequence[TensorSpec], count: int) -> list[list[str]]:
    """Names of the layers in `count` consecutive groups of about equal numel; none is empty."""
    if count > len(layers):
        raise CompositionError(f"local: num_fragments must be at most the number of layers, {len(layers)}, got {count}")
    total = sum(layer.numel for layer in layers)
    groups: list[list[str]] = [[]]
    numel = 0
    for at, layer in enumerate(layers):
        layers_left, groups_left = len(layers) - at, count - len(groups)
        is_full = numel >= total * len(groups) / count
        if groups[-1] and groups_left and (is_full or layers_left <= groups_left):
            groups.append([])
        groups[-1].append(layer.name)
        numel += layer.numel
    return groups


def initial_steps(period: int, count: int, overlap: bool = False) -> list[int]:
    """Local steps that each fragment counts at the start, so that the fragments' rounds are evenly spaced.

    The first counts none. With overlap it counts one: Algorithm 1 (Tolstobrov, 2022) averages in iteration k = p the
    weights of iteration k - 1, so rounds start after p - 1 steps, then after every p.
    """
    return [int(overlap) + at * period // count for at in range(count)]


def merge_round_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of one rank in a world of another size, without its exchanger's: means over the stored ranks."""
    first = states[0]
    require_keys(first, STORED, "local training")
    means = {
        part: {name: mean_state([state[part][name] for state in states]) for name in first[part]}
        for part in ("anchor", "momentum")
    }
    pending_rounds = {}
    for at, pending in first["pending_rounds"].items():
        values = [state["pending_rounds"][at]["values"] for state in states]
        mean = {name: mean_state([value[name] for value in values]) for name in pending["values"]}
        pending_rounds[at] = {**pending, "values": mean}
    return {**first, **means, "pending_rounds": pending_rounds}
