"""Storing and loading the state of a `LocalHandle`, also from another composition or number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core import require_keys
from ..drivers.driver import Driver
from ..optimizer_state import MomentsAveraging
from ..sync import LocalRounds
from .handle_memory import HandleMemory, describe_memory
from .moments_handle import describe_moments_memory
from .state_gather import build_state
from .state_loading import LoadTarget, load_rank_state


class LocalStateMethods:
    """The methods of `LocalHandle` that store and load its state."""

    driver: Driver
    rounds: LocalRounds
    averaging: MomentsAveraging | None
    step: int
    is_fresh: bool

    def _wait(self) -> None:
        raise NotImplementedError

    def state_dict(self, gather: bool = False) -> dict[str, Any]:
        """Return anchors, outer momentum, rounds under way and memories of this rank.

        Weights and the optimizer's state differ between ranks, too: each rank saves its own beside it.

        Args:
            gather: Collect the states of all ranks on each rank, so that one file is enough and any number of ranks
                can resume; call it on all ranks. It takes the memory of all ranks' states.
        """
        self._wait()
        mine = self.rounds.state_dict() | {"step": self.step}
        if self.averaging is not None:
            mine["moments"] = self.averaging.state_dict()
        return build_state(mine, {memory.kind: memory.texts for memory in self._memories()}, self.driver, gather)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> list[str]:
        """Continue from a stored state; all ranks call it. An error is raised on all ranks.

        With another number of ranks than stored, each rank starts with the mean of anchors and residuals.

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
        self._wait()
        target = LoadTarget(self._memories(), self.merged, lambda mine: self._install_state(mine, strict))
        return load_rank_state(state, self.driver, target, strict)

    def _install_state(self, mine: Mapping[str, Any], strict: bool) -> None:
        require_keys(mine, ("step",), "the handle of local")
        self.rounds.load_state_dict(mine)
        if self.averaging is not None and (strict or "moments" in mine):
            self.averaging.load_state_dict(mine.get("moments", {}))
        self.step, self.is_fresh = int(mine["step"]), False

    def _memories(self) -> list[HandleMemory]:
        moments = [] if self.averaging is None else [describe_moments_memory(self.averaging, "moments", "exchanger")]
        return [describe_memory(self.rounds.exchanger, "exchanger"), *moments]

    def merged(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Combine the states of a world of another size into one rank's state."""
        whole = self.rounds.merge_states(states)
        if self.averaging is not None and all("moments" in state for state in states):
            whole["moments"] = self.averaging.merged([state["moments"] for state in states])
        return whole
