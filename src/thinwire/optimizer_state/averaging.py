"""Averaging of moments over ranks: programs for any driver, with the memory that the composition asks for."""

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
from .composing import carried, for_pairs
from .settings import Moments, moments_text, parse_moments
from .transforms import unbiased


class Averaging:
    """One rank's averaging. Memory: what the composition keeps, by parameter; and how many rounds there were.

    rounds: keys of all randomness follow from it, so that no two rounds draw alike.
    """

    def __init__(self, adam: AdamMoments, moments: Moments, *, dense_below: int = DENSE_BELOW, seed: int = 0) -> None:
        self.adam, self.moments, self.dense_below = adam, moments, dense_below
        self.rules = self._rules_of(moments)
        self.exchanger = Exchanger(adam.layers, self.rules, seed=seed)
        self.rounds = 0

    def _rules_of(self, moments: Moments) -> dict[str, Aggregator[Any]]:
        whole = for_pairs(moments)
        return {spec.name: carried(spec, whole, Dense(), self.dense_below) for spec in self.adam.layers}

    @property
    def text(self) -> str:
        """How moments travel."""
        return moments_text(self.moments)

    def rules_of(self, text: str) -> dict[str, Aggregator[Any]]:
        """What each parameter would have with another text."""
        return self._rules_of(parse_moments(text))

    @property
    def titles(self) -> dict[str, str]:
        """Layers in a reader's words."""
        return self.adam.titles()

    def average(self, world: World, names: Iterable[str] | None = None) -> Program[bool]:
        """All ranks' m and v of these parameters (of all) become their average; True if all had numbers.

        If some rank had a NaN or an infinity, nothing has changed anywhere. A rank that made fewer steps than another
        is brought to its count by Adam's own correction; one that made none counts as one that saw gradients of zero.
        """
        chosen = list(self.adam.held if names is None else names)
        counters = {name: self.adam.counter(name) for name in chosen}
        step, self.rounds = self.rounds, self.rounds + 1
        if self.moments.counters:
            counters = yield from _largest(counters, step)
            chosen = [name for name in chosen if counters[name]]  # where nobody has any, there is nothing to average
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
            if (factor := unbiased(counter, target, beta)) != 1.0:
                pair[row] *= factor
        return pair

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers; the moments themselves are in the optimizer's own state."""
        return {"exchanger": self.exchanger.state_dict(), "rounds": self.rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys(state, ("exchanger", "rounds"), "an averaging of moments")
        self.exchanger.load_state_dict(state["exchanger"])
        self.rounds = int(state["rounds"])

    def merged(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One rank's state out of those of a world of another size."""
        return {**states[0], "exchanger": self.exchanger.merge_states([state["exchanger"] for state in states])}


def _largest(counters: Mapping[str, float], step: int) -> Program[dict[str, float]]:
    """The most steps that any rank made, parameter by parameter: whole numbers, so nothing is rounded."""
    mine = torch.tensor(list(counters.values()), dtype=torch.float64)
    label = Label("", "counters", mine.nbytes, 8.0 * mine.nbytes)
    most: Tensor = yield AllReduce(mine, Op.MAX, (label,), step)
    return dict(zip(counters, most.tolist(), strict=True))
