"""Observed capabilities of topologies."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from ..core import Capability, CompositionError, Topology, World
from .compressor_observations import has_methods

SIZES = (2, 4, 8)


def has_period(topology: Any) -> bool:
    """Weights repeat after `period` steps."""
    if not has_methods(topology, "period"):
        return False
    return all(
        topology.weights(World(rank, size), step) == topology.weights(World(rank, size), step + topology.period(size))
        for size in _sizes(topology)
        for rank in range(size)
        for step in range(topology.period(size))
    )


def supports_one_peer(topology: Any) -> bool:
    """With one_peer a rank has one neighbor per step, and over a period all the neighbors that it has without."""
    if not is_dataclass(topology) or "one_peer" not in [field.name for field in fields(topology)]:
        return False
    one_peer: Any = replace(topology, one_peer=True)  # type: ignore[type-var]
    all_peers: Any = replace(topology, one_peer=False)  # type: ignore[type-var]
    for size in _sizes(all_peers):
        neighbors = [set(one_peer.weights(World(0, size), step)) - {0} for step in range(one_peer.period(size))]
        if max(map(len, neighbors)) > 1 or set().union(*neighbors) != set(all_peers.weights(World(0, size), 0)) - {0}:
            return False
    return True


def _sizes(topology: Topology) -> list[int]:
    """World sizes that the topology accepts."""
    accepted = []
    for size in SIZES:
        try:
            topology.weights(World(0, size), 0)
        except CompositionError:
            continue
        accepted.append(size)
    return accepted


TOPOLOGY_OBSERVATIONS = {Capability.HAS_PERIOD: has_period, Capability.SUPPORTS_ONE_PEER: supports_one_peer}
