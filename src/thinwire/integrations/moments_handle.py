"""The handle that `thinwire.moments.average` returns, and the transfer of moments between two ranks."""

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
from ..optimizer_state import MomentsAveraging, MomentsTransfer
from .compositions import Compositions, dense_reason
from .connections import connect_or_single, connect_pair
from .handle_memory import HandleMemory
from .report import ReportContext, TrafficReport, describe_handle
from .state_gather import build_state
from .state_loading import LoadTarget, load_rank_state


def describe_moments_memory(averaging: MomentsAveraging, *path: str) -> HandleMemory:
    """The memory of an averaging; one text is stored for all parameters."""
    texts = {"moments": averaging.text}
    return HandleMemory(
        "moments", texts, averaging.exchanger, path, lambda stored: averaging.rules_of(stored["moments"])
    )


class MomentsHandle(ClosedOnExit):
    """Averages one optimizer's moments over ranks. `thinwire.moments.average` makes it.

    All ranks call its methods alike, between the same steps. In a `with` block it is closed at the end.
    """

    def __init__(
        self, averaging: MomentsAveraging, settings: Mapping[str, Any], timeout_s: float = 60.0, group: Any = None
    ) -> None:
        self.averaging = averaging
        self.layers: list[TensorSpec] = list(averaging.exchanger.layers.values())
        self.seconds = {"waiting": 0.0}
        tensors = {layer.name: f"{list(layer.shape[1:])} {layer.dtype}" for layer in self.layers}
        compared = {"thinwire": __version__, **settings, "parameter": tensors}
        self.driver = connect_or_single("moments", compared, timeout_s, group)

    @torch.no_grad()
    def average(self) -> None:
        """Replace all ranks' moments by their average now.

        Raises:
            NonFiniteError: Some rank's moments have a NaN or an infinity; no rank's moments have changed.
            ClosedError: The handle is closed.
        """
        began = time.perf_counter()
        good = self.driver.run(self.averaging.average(self.driver.world))
        self.seconds["waiting"] += time.perf_counter() - began
        if not good:
            raise NonFiniteError(
                f"round {self.averaging.rounds - 1}: some rank's moments have a NaN or an infinity, so no rank's "
                "moments have changed; the log of that rank names the parameters"
            )

    def report(self) -> TrafficReport:
        """Return bytes sent and saving so far, as counted on this rank; prints as a table."""
        dense = sum(layer.numel * layer.dtype.itemsize for layer in self.layers)
        exchanger, rounds, driver = self.averaging.exchanger, self.averaging.rounds, self.driver
        context = ReportContext(self._compositions, self._state, "round", "dense", titles=self.averaging.titles)
        return TrafficReport.of(
            driver.meter, driver.world, rounds, dense, self.seconds, exchanger.skipped_steps, 0, None, context
        )

    def __repr__(self) -> str:
        return describe_handle(self, self._compositions, self.averaging.rounds, self.driver.world, self._state, "round")

    @property
    def _state(self) -> str:
        return "closed" if self.driver.is_closed else ""

    @property
    def _compositions(self) -> Compositions:
        """The text of the averaging stands for the aggregators of pairs that were made from it."""
        rules = self.averaging.exchanger.aggregators
        texts = {name: "dense()" if rule == Dense() else self.averaging.text for name, rule in rules.items()}
        if self.averaging.text.removeprefix("moments(").startswith("dense()"):
            return Compositions(texts, {})
        forms = [TensorSpec(layer.name, layer.shape[1:]) for layer in self.layers]  # m and v have the same shape
        reasons = {form.name: dense_reason(form, self.averaging.dense_below) for form in forms}
        return Compositions(texts, {name: reason for name, reason in reasons.items() if reason is not None})

    def state_dict(self, gather: bool = False) -> dict[str, Any]:
        """Return this rank's memory; the moments themselves are in the optimizer's own state, to be saved beside it.

        Args:
            gather: Collect the states of all ranks on each rank, so that one file is enough and any number of ranks
                can resume; call it on all ranks. It takes the memory of all ranks' states.
        """
        mine, memory = self.averaging.state_dict(), describe_moments_memory(self.averaging, "exchanger")
        return build_state(mine | {"step": self.averaging.rounds}, {memory.kind: memory.texts}, self.driver, gather)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> list[str]:
        """Continue from a stored state; all ranks call it. An error is raised on all ranks.

        With another number of ranks than stored, each rank starts with the mean of all memories.

        Args:
            state: What `state_dict()` returned: on the same rank, or with gather on any.
            strict: With False, take over what fits from a state of another composition, and let a rank without a
                stored memory start with an empty one.

        Returns:
            What was dropped, one text each, also logged; always empty with strict.

        Raises:
            ConfigMismatch: The state is of another composition (only with strict), or ranks passed different states.
            CheckpointError: The memory of a rank is missing (only with strict), or a tensor has another shape.
        """
        memories = [describe_moments_memory(self.averaging, "exchanger")]
        target = LoadTarget(memories, self.averaging.merged, self.averaging.load_state_dict)
        return load_rank_state(state, self.driver, target, strict)

    def close(self) -> None:
        """Close the connections; `report()` stays available. A second call does nothing."""
        self.driver.close()


@torch.no_grad()
def transfer(moments: MomentsTransfer, other: int, sends: bool, timeout_s: float = 60.0, group: Any = None) -> Traffic:
    """Send to, or receive from, another rank of the group; no other rank takes part. Return the bytes of this rank."""
    if not (dist.is_available() and dist.is_initialized()):
        raise CompositionError(
            "moments: send and receive need a process group; call torch.distributed.init_process_group first"
        )
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if other == rank or not 0 <= other < size:
        raise CompositionError(
            f"moments: the other rank must be from 0 to {size - 1} and not this one, {rank}; got {other}"
        )
    pair = sorted((rank, other))
    program: Callable[[int], Program[None]] = moments.send if sends else moments.receive
    with connect_pair(timeout_s, group, pair) as driver:
        driver.run(program(pair.index(other)))
        return driver.meter.total()
