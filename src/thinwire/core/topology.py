"""Topologies: which ranks exchange with which and with what weights, and what follows for a composition."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

from .capabilities import Capability, has
from .composition import parts_of
from .parts import Aggregator, Compressor
from .requests import World


@runtime_checkable
class Topology(Protocol):
    """A graph of ranks with mixing weights. Settings only, no state: a frozen dataclass, so that it can be cached."""

    def __hash__(self) -> int: ...

    @property
    def changes(self) -> bool:
        """Whether weights depend on the step."""
        ...

    def weights(self, world: World, step: int) -> Mapping[int, float]:
        """One row of a doubly stochastic matrix: the weight of each rank's tensor in this rank's new value, its own
        included. Rows sum to one, and so do columns."""
        ...


class Periodic(Protocol):
    """A topology with weights that repeat."""

    def period(self, size: int) -> int:
        """The number of steps after which the weights of `size` ranks repeat."""
        ...


def has_period(topology: Topology) -> TypeGuard[Periodic]:
    """Whether a topology has a period."""
    return has(topology, Capability.HAS_PERIOD)


class Neighbors(NamedTuple):
    """One rank's place in a topology."""

    self_weight: float  # of its own tensor
    incoming: dict[int, float]  # weights by source rank, ascending, without its own
    receivers: tuple[int, ...]  # ranks that receive from this one, ascending


def neighbors_of(topology: Topology, world: World, step: int) -> Neighbors:
    """The sources and receivers of a rank at a step.

    Receivers follow from the weights of all ranks, so the graph is computed once and cached for all layers and, in
    lockstep, for all ranks.
    """
    return _graph(topology, world.size, step if topology.changes else 0)[world.rank]


@lru_cache(maxsize=64)
def _graph(topology: Topology, size: int, step: int) -> tuple[Neighbors, ...]:
    rows = [topology.weights(World(rank, size), step) for rank in range(size)]
    receivers: list[list[int]] = [[] for _ in range(size)]
    for rank, row in enumerate(rows):
        for source, weight in row.items():
            if source != rank and weight:
                receivers[source].append(rank)
    return tuple(
        Neighbors(row.get(rank, 0.0), {s: row[s] for s in sorted(row) if s != rank and row[s]}, tuple(receivers[rank]))
        for rank, row in enumerate(rows)
    )


def topology_of(aggregator: Aggregator[Any]) -> Topology | None:
    """The topology inside a composition that gives ranks different values; None if all ranks get the same.

    Of several, one that changes with the step is preferred.
    """
    inside = [part for part in parts_of(aggregator) if isinstance(part, Topology)]
    return next((topology for topology in inside if topology.changes), inside[0] if inside else None)


def is_lossless(aggregator: Aggregator[Any]) -> bool:
    """Whether a composition loses nothing but rounding: its compressors and aggregators are all lossless."""
    inside = [part for part in parts_of(aggregator) if isinstance(part, Compressor | Aggregator)]
    return all(has(part, Capability.LOSSLESS) for part in inside)


def tracks_peer_copies(aggregator: Aggregator[Any]) -> bool:
    """Whether ranks keep copies of their neighbors' tensors and send differences, as CHOCO-SGD does."""
    return any(has(part, Capability.TRACKS_PEER_COPIES) for part in parts_of(aggregator))


def accepts_weights(aggregator: Aggregator[Any]) -> bool:
    """Whether weights may be sent through a composition, and not only gradients or differences of weights.

    That needs a lossless one, or one that sends differences to tracked copies.
    """
    return is_lossless(aggregator) or tracks_peer_copies(aggregator)
