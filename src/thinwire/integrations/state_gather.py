"""The state that a handle stores: this rank's, or those of all ranks, gathered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core import AllGather, ClosedError, GatheredPayloads, Label, Payload, Program
from ..drivers.driver import Driver

State = Mapping[str, Any]  # nested; leaves are tensors and numbers


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


def build_state(own: State, texts: Mapping[str, Any], driver: Driver, gather: bool) -> dict[str, Any]:
    """Return what a handle stores: its composition texts, and this rank's state, or those of all ranks."""
    if driver.is_closed:
        raise ClosedError("state_dict: this handle was closed; save its state before, or inside the with block")
    rank, size = driver.world
    ranks = driver.run(gather_states(own)) if gather else {rank: _separate(own, set())}
    return {"world_size": size, **texts, **{f"rank{r}": state for r, state in ranks.items()}}


def _separate(state: State, seen: set[int]) -> State:
    """Copy tensors that share memory with another of the state: `dcp.load` writes into each of them in place."""
    return {
        key: _separate(value, seen) if isinstance(value, Mapping) else _separate_leaf(value, seen)
        for key, value in state.items()
    }


def _separate_leaf(leaf: Any, seen: set[int]) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    is_shared = leaf.data_ptr() in seen
    seen.add(leaf.data_ptr())
    return leaf.clone() if is_shared else leaf.detach()
