"""One layer through an aggregator, all ranks in this process; and states through plain bytes."""

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
    """What each rank gets for its tensor."""
    spec = TensorSpec.of("layer", tensors[0])
    size = len(tensors)
    states = states or [aggregator.init(spec, derive_key(_INIT_KEY)) for _ in range(size)]
    contexts = [Context(step, World(rank, size), seed=3, plan={"layer": 0}) for rank in range(size)]
    programs = [aggregator.reduce(t, spec, s, c) for t, s, c in zip(tensors, states, contexts, strict=True)]
    return list(lockstep(programs, meters))


def restore_from_bytes(state: Any) -> Any:
    """A state after it went through plain bytes, as a file would hold it."""
    if isinstance(state, dict):
        return {key: restore_from_bytes(value) for key, value in state.items()}
    if isinstance(state, Tensor):
        raw = bytearray(state.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        empty = torch.empty(state.shape, dtype=state.dtype)
        return torch.frombuffer(raw, dtype=state.dtype).view(state.shape) if raw else empty
    return state


def assert_same(a: Any, b: Any) -> None:
    """Dictionaries of tensors and numbers, equal to the last bit."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    else:
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b
