"""All ranks' memories in one place, and one rank's share of memories that another number of ranks left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import AllGather, CheckpointError, GatheredPayloads, Label, Payload, Program, World
from ..drivers.driver import Driver

State = Mapping[str, Any]  # nested; leaves are tensors and numbers
Merge = Callable[[Sequence[State]], dict[str, Any]]  # one rank's state out of those of a world of another size


def gather_states(mine: State) -> Program[dict[int, State]]:
    """Every rank's state by rank, on all ranks; states have the same form everywhere."""
    leaves = [torch.as_tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None) for leaf in _leaves(mine)]
    num_bytes = sum(tensor.nbytes for tensor in leaves)
    payload = Payload(tuple(leaf.detach().cpu().contiguous().view(-1) for leaf in leaves))
    gathered: GatheredPayloads = yield AllGather(payload, (Label("", "state", num_bytes, 8.0 * num_bytes),))
    return {rank: _rebuilt(mine, iter(theirs.parts)) for rank, theirs in enumerate(gathered)}


def _leaves(state: State) -> list[Any]:
    return [leaf for value in state.values() for leaf in (_leaves(value) if isinstance(value, Mapping) else [value])]


def _rebuilt(form: State, parts: Any) -> State:
    return {
        key: _rebuilt(value, parts) if isinstance(value, Mapping) else _like(value, next(parts))
        for key, value in form.items()
    }


def _like(form: Any, part: Tensor) -> Any:
    return part.clone().view(form.shape) if isinstance(form, Tensor) else type(form)(part.item())


def own_state(state: Mapping[str, Any], world: World, merge: Merge) -> State:
    """This rank's own of a stored state."""
    rank, size = world
    stored = int(state["world_size"])
    if f"rank{rank}" in state and stored == size:
        return dict(state[f"rank{rank}"])
    missing = [r for r in range(stored) if f"rank{r}" not in state]
    if missing:
        now = "" if stored == size else f", and the world has {size} ranks now, so the states of all are needed"
        raise CheckpointError(
            f"load_state_dict: the stored state is of {stored} ranks{now}; that of rank {missing[0]} is not in it. "
            "Save with state_dict(gather=True), or put the states of all ranks together"
        )
    return merge([dict(state[f"rank{r}"]) for r in range(stored)])


def state_of_all(mine: State, told: Mapping[str, Any], driver: Driver, gather: bool) -> dict[str, Any]:
    """What a handle stores: of what it is, and every rank's state, or this rank's alone and silently."""
    rank, size = driver.world
    ranks = driver.run(gather_states(mine)) if gather else {rank: mine}
    return {"world_size": size, **told, **{f"rank{r}": state for r, state in ranks.items()}}
