"""Run one layer through an aggregator on all ranks of a simulated world; compare and restore states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import Aggregator, Context, Reduced, TensorSpec, World, derive_key
from ..drivers.lockstep import lockstep
from ..drivers.meter import Meter

_INIT_KEY = "init"  # frozen: makes the random bits


def reduce_all(
    aggregator: Aggregator[Any],
    tensors: Sequence[Tensor],
    states: Sequence[Any] | None = None,
    step: int = 0,
    meters: Sequence[Meter] | None = None,
) -> list[Reduced[Any]]:
    """Run one step of an aggregator for one layer, all ranks in this process.

    Args:
        aggregator: a composition.
        tensors: one for each rank.
        states: one for each rank; new ones if None.
        step: the number of the step.
        meters: one for each rank, which count its bytes.

    Returns:
        What each rank's `reduce` returns.
    """
    spec = TensorSpec.of("layer", tensors[0])
    size = len(tensors)
    states = states or [aggregator.init(spec, derive_key(_INIT_KEY)) for _ in range(size)]
    contexts = [Context(step, World(rank, size), seed=3, plan={"layer": 0}) for rank in range(size)]
    programs = [aggregator.reduce(t, spec, s, c) for t, s, c in zip(tensors, states, contexts, strict=True)]
    return list(lockstep(programs, meters))


def restore_from_bytes(state: Any) -> Any:
    """Copy a state by way of plain bytes, as a checkpoint file does.

    Args:
        state: nested dictionaries of tensors and numbers.

    Returns:
        An equal state that shares no memory with it.
    """
    if isinstance(state, dict):
        return {key: restore_from_bytes(value) for key, value in state.items()}
    if isinstance(state, Tensor):
        raw = bytearray(state.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        empty = torch.empty(state.shape, dtype=state.dtype)
        return torch.frombuffer(raw, dtype=state.dtype).view(state.shape) if raw else empty
    return state


def assert_same(a: Any, b: Any) -> None:
    """Assert that two nested dictionaries of tensors and numbers are equal to the last bit.

    Raises:
        AssertionError: they differ.
    """
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    else:
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b
