"""Averaging of Adam's moments over ranks: programs for any driver, with the memory of the composition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..aggregators import Dense
from ..catalog import DENSE_BELOW
from ..core import Aggregator, AllReduce, Label, Op, Program, World, require_keys
from ..exchange import Exchanger
from .adam import AdamMoments
from .config import MomentsConfig, moments_to_text, parse_moments
from .pair_composition import build_pair_aggregator, select_by_size
from .transforms import bias_correction_factor


class MomentsAveraging:
    """Averages the moments of one rank's Adam with those of the other ranks.

    Attributes:
        exchanger: The exchanger of the pairs, with the memory of the composition.
        rounds: Number of averages so far; the keys of all randomness depend on it, so rounds differ.
    """

    def __init__(
        self, adam: AdamMoments, moments: MomentsConfig, *, dense_below: int = DENSE_BELOW, seed: int = 0
    ) -> None:
        self.adam, self.moments, self.dense_below = adam, moments, dense_below
        self.rules = self._assign(moments)
        self.exchanger = Exchanger(adam.layers, self.rules, seed=seed)
        self.rounds = 0

    def _assign(self, moments: MomentsConfig) -> dict[str, Aggregator[Any]]:
        compressing = build_pair_aggregator(moments)
        return {spec.name: select_by_size(spec, compressing, Dense(), self.dense_below) for spec in self.adam.layers}

    @property
    def text(self) -> str:
        """The text of the composition."""
        return moments_to_text(self.moments)

    def rules_of(self, text: str) -> dict[str, Aggregator[Any]]:
        """Return the aggregators of all parameters for another text."""
        return self._assign(parse_moments(text))

    @property
    def titles(self) -> dict[str, str]:
        """Names of layers for reports."""
        return self.adam.titles()

    def average(self, world: World, names: Iterable[str] | None = None) -> Program[bool]:
        """Replace m and v of these parameters (None: all) by their average over ranks; return whether all were finite.

        If some rank had a NaN or an infinity, nothing changes on any rank. The moments of a rank with fewer steps are
        scaled to the largest number of steps by Adam's bias correction; a rank without steps counts as having seen
        gradients of zero.
        """
        chosen = list(self.adam.parameters if names is None else names)
        counters = {name: self.adam.counter(name) for name in chosen}
        step, self.rounds = self.rounds, self.rounds + 1
        if self.moments.counters:
            counters = yield from _max_counters(counters, step)
            chosen = [name for name in chosen if counters[name]]  # without any step there is nothing to average
        pairs = {name: self._pair(name, counters[name]) for name in chosen}
        yield from self.exchanger.begin(step, world)
        values = yield from self.exchanger.exchange(pairs, step, world)
        if not self.exchanger.settle():
            return False
        for name, value in values.items():
            self.adam.write(name, value, counters[name] if self.moments.counters else None, self.moments.floor)
        return True

    def _pair(self, name: str, target: float) -> Tensor:
        pair, counter = self.adam.pair(name), self.adam.counter(name)
        for row, beta in enumerate(self.adam.betas(name)):
            if (factor := bias_correction_factor(counter, target, beta)) != 1.0:
                pair[row] *= factor
        return pair

    def state_dict(self) -> dict[str, Any]:
        """Return the memory and the number of rounds; the moments are in the optimizer's own state."""
        return {"exchanger": self.exchanger.state_dict(), "rounds": self.rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a stored state."""
        require_keys(state, ("exchanger", "rounds"), "an averaging of moments")
        self.exchanger.load_state_dict(state["exchanger"])
        self.rounds = int(state["rounds"])

    def merged(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Combine the states of a world of another size into one rank's state."""
        return {**states[0], "exchanger": self.exchanger.merge_states([state["exchanger"] for state in states])}


def _max_counters(counters: Mapping[str, float], step: int) -> Program[dict[str, float]]:
    """Return the largest number of steps of any rank, by parameter; integers, so nothing is rounded."""
    own = torch.tensor(list(counters.values()), dtype=torch.float64)
    label = Label("", "counters", own.nbytes, 8.0 * own.nbytes)
    largest: Tensor = yield AllReduce(own, Op.MAX, (label,), step)
    return dict(zip(counters, largest.tolist(), strict=True))
