"""The handle that `thinwire.moments.average` gives, and moments that go from one rank to another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from .. import __version__
from ..aggregators import Dense
from ..core import ClosedOnExit, CompositionError, NonFiniteError, Program, TensorSpec
from ..drivers.meter import Traffic
from ..optimizer_state import Averaging, Moving
from .compositions import Compositions, dense_reason
from .connections import open_or_alone, open_pair
from .report import ReportContext, TrafficReport, repr_of
from .state_gather import state_of_all
from .state_loading import Memory, load_own


def memory_of_moments(averaging: Averaging, *path: str) -> Memory:
    """One text serves all parameters."""
    texts = {"moments": averaging.text}
    return Memory("moments", texts, averaging.exchanger, path, lambda stored: averaging.rules_of(stored["moments"]))


class MomentsHandle(ClosedOnExit):
    """Averages one optimizer's moments. Made by `thinwire.moments.average`, on every rank alike; so it is used."""

    def __init__(
        self, averaging: Averaging, facts: Mapping[str, Any], timeout_s: float = 60.0, group: Any = None
    ) -> None:
        self.averaging = averaging
        self.layers: list[TensorSpec] = list(averaging.exchanger.layers.values())
        self.seconds = {"waiting": 0.0}
        tensors = {layer.name: f"{list(layer.shape[1:])} {layer.dtype}" for layer in self.layers}
        known = {"thinwire": __version__, **facts, "parameter": tensors}
        self.driver = open_or_alone("moments", known, timeout_s, group)

    @torch.no_grad()
    def average(self) -> None:
        """All ranks' moments become their average now. All ranks call it, between the same steps."""
        began = time.perf_counter()
        good = self.driver.run(self.averaging.average(self.driver.world))
        self.seconds["waiting"] += time.perf_counter() - began
        if not good:
            raise NonFiniteError(
                f"round {self.averaging.rounds - 1}: some rank's moments have a NaN or an infinity, so no rank's have "
                "changed; the log of that rank names the parameters"
            )

    def report(self) -> TrafficReport:
        """What was sent and saved, as this rank counted. Prints as a table."""
        dense = sum(layer.numel * layer.dtype.itemsize for layer in self.layers)
        exchanger, rounds, driver = self.averaging.exchanger, self.averaging.rounds, self.driver
        about = ReportContext(self._compositions, self._state, "round", "dense", titles=self.averaging.titles)
        return TrafficReport.of(
            driver.meter, driver.world, rounds, dense, self.seconds, exchanger.skipped_steps, 0, None, about
        )

    def __repr__(self) -> str:
        return repr_of(self, self._compositions, self.averaging.rounds, self.driver.world, self._state, "round")

    @property
    def _state(self) -> str:
        return "closed" if self.driver.is_closed else ""

    @property
    def _compositions(self) -> Compositions:
        """Those of pairs are called by the text they were made of."""
        rules = self.averaging.exchanger.aggregators
        texts = {name: "dense()" if rule == Dense() else self.averaging.text for name, rule in rules.items()}
        if self.averaging.text.removeprefix("moments(").startswith("dense()"):
            return Compositions(texts, {})
        forms = [TensorSpec(layer.name, layer.shape[1:]) for layer in self.layers]  # m and v have the same form
        reasons = {form.name: dense_reason(form, self.averaging.dense_below) for form in forms}
        return Compositions(texts, {name: reason for name, reason in reasons.items() if reason is not None})

    def state_dict(self, gather: bool = True) -> dict[str, Any]:
        """Memories of all ranks; gather=False: this rank's alone, silently. Save the optimizer's state beside it."""
        mine, memory = self.averaging.state_dict(), memory_of_moments(self.averaging, "exchanger")
        return state_of_all(mine | {"step": self.averaging.rounds}, {memory.kind: memory.texts}, self.driver, gather)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> list[str]:
        """Go on where `state_dict` was taken; if the world has another size, with the mean of all memories.

        strict=False takes over what fits of a state of another composition; what is dropped is returned and logged.
        """
        memories = [memory_of_moments(self.averaging, "exchanger")]
        mine, dropped = load_own(state, self.driver, self.averaging.merged, memories, strict)
        self.averaging.load_state_dict(mine)
        return dropped

    def close(self) -> None:
        self.driver.close()


@torch.no_grad()
def move(moving: Moving, other: int, sends: bool, timeout_s: float = 60.0, group: Any = None) -> Traffic:
    """Send to, or receive from, another rank of the group; no third rank takes part. What it took, as counted here."""
    if not (dist.is_available() and dist.is_initialized()):
        raise CompositionError("moments: sending needs a process group; call init_process_group first")
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if other == rank or not 0 <= other < size:
        raise CompositionError(f"moments: another rank is needed, 0 to {size - 1} and not {rank}, got {other}")
    pair = sorted((rank, other))
    program: Callable[[int], Program[None]] = moving.send if sends else moving.receive
    with open_pair(timeout_s, group, pair) as driver:
        driver.run(program(pair.index(other)))
        return driver.meter.total()
