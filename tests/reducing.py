"""One layer through an aggregator, all ranks in lockstep."""

from __future__ import annotations

from thinwire import TensorSpec, World, lockstep
from thinwire.core import Context, derive_key


def reduce_all(aggregator, tensors, states=None, step=0, meters=None):
    """What each rank gets for its tensor."""
    spec = TensorSpec.of("layer", tensors[0])
    size = len(tensors)
    states = states or [aggregator.init(spec, derive_key("init")) for _ in range(size)]
    contexts = [Context(step, World(rank, size), seed=3, plan={"layer": 0}) for rank in range(size)]
    programs = [aggregator.reduce(t, spec, s, c) for t, s, c in zip(tensors, states, contexts, strict=True)]
    return lockstep(programs, meters)
