"""The state of the handle that `local` gives: stored, and loaded, also of another composition or number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core import require_keys
from ..drivers.driver import Driver
from ..optimizer_state import Averaging
from ..sync import Rounds
from .gathering import state_of_all
from .loading import Memory, load_own, memory_of
from .moments import memory_of_moments


class LocalState:
    """The methods of `LocalWire` that store and load."""

    driver: Driver
    rounds: Rounds
    averaging: Averaging | None
    step: int
    fresh: bool

    def _wait(self) -> None:
        raise NotImplementedError

    def state_dict(self, gather: bool = True) -> dict[str, Any]:
        """Anchors, momentum, flights and memories, of all ranks; gather=False: this rank's alone, silently.

        Weights and the optimizer's state are each rank's own between rounds: save those of every rank beside it.
        """
        self._wait()
        mine = self.rounds.state_dict() | {"step": self.step}
        if self.averaging is not None:
            mine["moments"] = self.averaging.state_dict()
        return state_of_all(mine, {memory.kind: memory.texts for memory in self._memories()}, self.driver, gather)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> list[str]:
        """Go on where `state_dict` was taken; if the world has another size, with the mean of anchors and residuals.

        strict=False takes over what fits of a state of another composition; what is dropped is returned and logged.
        """
        mine, dropped = load_own(state, self.driver, self.merged, self._memories(), strict)
        require_keys(mine, ("step",), "the handle of local")
        self._wait()
        self.rounds.load_state_dict(mine)
        if self.averaging is not None and (strict or "moments" in mine):
            self.averaging.load_state_dict(mine.get("moments", {}))
        self.step, self.fresh = int(mine["step"]), False
        return dropped

    def _memories(self) -> list[Memory]:
        moments = [] if self.averaging is None else [memory_of_moments(self.averaging, "moments", "exchanger")]
        return [memory_of(self.rounds.exchanger, "exchanger"), *moments]

    def merged(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One rank's state out of those of a world of another size."""
        whole = self.rounds.merged(states)
        if self.averaging is not None and all("moments" in state for state in states):
            whole["moments"] = self.averaging.merged([state["moments"] for state in states])
        return whole
