"""Gathering the states of all ranks, and selecting or merging one rank's state when loading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import AllGather, CheckpointError, GatheredPayloads, Label, Payload, Program, World
from ..drivers.driver import Driver

State = Mapping[str, Any]  # nested; leaves are tensors and numbers
Merge = Callable[[Sequence[State]], dict[str, Any]]  # combines the states of a world of another size


def gather_states(own: State) -> Program[dict[int, State]]:
    """Return the states of all ranks by rank; they have the same structure on all ranks."""
    leaves = [torch.as_tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None) for leaf in _leaves(own)]
    num_bytes = sum(tensor.nbytes for tensor in leaves)
    payload = Payload(tuple(leaf.detach().cpu().contiguous().view(-1) for leaf in leaves))
    gathered: GatheredPayloads = yield AllGather(payload, (Label("", "state", num_bytes, 8.0 * num_bytes),))
    return {rank: _unflatten(own, iter(payload.parts)) for rank, payload in enumerate(gathered)}


def _leaves(state: State) -> list[Any]:
    return [leaf for value in state.values() for leaf in (_leaves(value) if isinstance(value, Mapping) else [value])]


def _unflatten(form: State, parts: Any) -> State:
    return {
        key: _unflatten(value, parts) if isinstance(value, Mapping) else _restore_leaf(value, next(parts))
        for key, value in form.items()
    }


def _restore_leaf(form: Any, part: Tensor) -> Any:
    return part.clone().view(form.shape) if isinstance(form, Tensor) else type(form)(part.item())


def select_rank_state(state: Mapping[str, Any], world: World, merge: Merge) -> State:
    """Return this rank's part of a stored state."""
    rank, size = world
    stored = int(state["world_size"])
    if f"rank{rank}" in state and stored == size:
        return dict(state[f"rank{rank}"])
    missing = [r for r in range(stored) if f"rank{r}" not in state]
    if missing:
        now = "" if stored == size else f", and there are {size} ranks now, so the states of all {stored} are needed"
        raise CheckpointError(
            f"load_state_dict: the stored state is of {stored} ranks{now}; the state of rank {missing[0]} is missing. "
            "Save with state_dict(gather=True), or merge the states of all ranks into one mapping"
        )
    return merge([dict(state[f"rank{r}"]) for r in range(stored)])


def build_state(own: State, texts: Mapping[str, Any], driver: Driver, gather: bool) -> dict[str, Any]:
    """Return what a handle stores: its composition texts, and the states of all ranks, or only this rank's."""
    rank, size = driver.world
    ranks = driver.run(gather_states(own)) if gather else {rank: own}
    return {"world_size": size, **texts, **{f"rank{r}": state for r, state in ranks.items()}}
