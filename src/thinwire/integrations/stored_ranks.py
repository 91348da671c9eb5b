"""The ranks whose states are in a stored state: which of them each present rank has, needs and lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..core import AllGather, CheckpointError, GatheredPayloads, Label, Payload, Program
from .rank_agreement import list_ranks
from .state_gather import State

Merge = Callable[[Sequence[State]], dict[str, Any]]  # combines the states of a world of another size

GATHER = "Save with state_dict(gather=True), called on all ranks: then one file has them all"
EACH_ITS_OWN = (
    "Or let each rank save and load its own state, as thinwire.checkpoint and torch.distributed.checkpoint do"
)
MERGED = (
    "Or merge the states of all ranks into one mapping, {**state_of_rank_0, **state_of_rank_1, ...}, and pass it on "
    "all ranks; thinwire.load_dcp does so for torch.distributed.checkpoint"
)


def find_rank_states(state: Mapping[str, Any]) -> dict[int, State]:
    """Return the states of ranks that a stored state has, by rank."""
    names = [key for key in state if str(key).startswith("rank") and key[4:].isdigit()]
    return {int(name[4:]): state[name] for name in names if isinstance(state[name], Mapping)}


class StoredRanks(NamedTuple):
    """The ranks in the states that all present ranks have passed; equal on all of them."""

    size: int  # number of ranks that have saved
    held: tuple[tuple[int, ...], ...]  # for each present rank, the stored ranks that it has

    @property
    def is_resized(self) -> bool:
        """Whether the number of ranks has changed."""
        return self.size != len(self.held)

    def needed(self, rank: int) -> list[int]:
        """The stored ranks that a present rank needs: itself, or all if the number of ranks has changed."""
        return list(range(self.size)) if self.is_resized else [rank]

    @property
    def missing(self) -> list[int]:
        """The stored ranks that some present rank needs and does not have."""
        return sorted({r for rank, held in enumerate(self.held) for r in self.needed(rank) if r not in held})

    def check(self, strict: bool) -> None:
        """Raise CheckpointError, on all ranks alike, if a state is missing that cannot be done without."""
        if not self.missing:
            return
        missing = f"load_state_dict: {self._describe_missing()}"
        if strict:
            without = (
                f"load_state_dict(state, strict=False) continues with an empty memory of {list_ranks(self.missing)}"
            )
            raise CheckpointError(f"{missing}. {GATHER}. {MERGED if self.is_resized else EACH_ITS_OWN}. {without}")
        if self.is_resized and len(set(self.held)) > 1:
            raise CheckpointError(
                f"{missing}, and ranks have passed states of different ranks, from which no common memory follows. "
                f"{GATHER}. {MERGED}"
            )

    def _describe_missing(self) -> str:
        lacking = next(r for r, held in enumerate(self.held) if set(self.needed(r)) - set(held))
        need = f", there are {len(self.held)} now, and each needs the states of all" if self.is_resized else ""
        return (
            f"the memory of {list_ranks(self.missing)} is missing: {self.size} ranks have saved{need}; rank {lacking} "
            f"has passed the state of {list_ranks(self.held[lacking])}"
        )

    def select(self, states: Mapping[int, State], rank: int, merge: Merge) -> State:
        """Return what a present rank loads: its own state, or all states merged."""
        needed = [dict(states[r]) for r in self.needed(rank)]
        return merge(needed) if self.is_resized else needed[0]


def gather_stored_ranks(states: Mapping[int, State], size: int) -> Program[StoredRanks]:
    """Tell all ranks which states this one has."""
    own = torch.tensor(sorted(states), dtype=torch.int64)
    gathered: GatheredPayloads = yield AllGather(
        Payload((own,)), (Label("", "settings", own.nbytes, 8.0 * own.nbytes),)
    )
    return StoredRanks(size, tuple(tuple(payload.parts[0].tolist()) for payload in gathered))
