"""With whom a rank mixes, and what follows from it for those who put parts together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

from .capabilities import Capability, has
from .composition import parts_of
from .errors import IncompatibleParts
from .parts import Aggregator, Compressor
from .requests import World


@runtime_checkable
class Topology(Protocol):
    """With whom: settings, never memory. Keeps to a frozen dataclass, so that it can be compared and remembered."""

    def __hash__(self) -> int: ...

    @property
    def changes(self) -> bool:
        """Whether weights depend on the step."""
        ...

    def weights(self, world: World, step: int) -> Mapping[int, float]:
        """Weights of what a rank takes in, its own included, summing to one. Over all ranks, columns do, too."""
        ...


class Periodic(Protocol):
    """A topology whose weights come round again."""

    def period(self, size: int) -> int:
        """After how many steps, for so many ranks."""
        ...


def has_period(topology: Topology) -> TypeGuard[Periodic]:
    return has(topology, Capability.HAS_PERIOD)


class Neighbours(NamedTuple):
    """One rank's place in a topology."""

    own: float  # the weight of its own tensor
    incoming: dict[int, float]  # weights by source, ascending, without its own
    receivers: tuple[int, ...]  # who takes in what this rank has, ascending


def neighbours(topology: Topology, world: World, step: int) -> Neighbours:
    """Whom a rank hears and who hears it. Receivers follow from the weights of all others, so the graph is worked out
    once and kept for all layers and, in lockstep, for all ranks."""
    return _graph(topology, world.size, step if topology.changes else 0)[world.rank]


@lru_cache(maxsize=64)
def _graph(topology: Topology, size: int, step: int) -> tuple[Neighbours, ...]:
    rows = [topology.weights(World(rank, size), step) for rank in range(size)]
    receivers: list[list[int]] = [[] for _ in range(size)]
    for rank, row in enumerate(rows):
        for source, weight in row.items():
            if source != rank and weight:
                receivers[source].append(rank)
    return tuple(
        Neighbours(row.get(rank, 0.0), {s: row[s] for s in sorted(row) if s != rank and row[s]}, tuple(receivers[rank]))
        for rank, row in enumerate(rows)
    )


def mixes(aggregator: Aggregator[Any]) -> Topology | None:
    """The topology inside, if ranks end with differing values, one that changes first; None if all get the same."""
    inside = [part for part in parts_of(aggregator) if isinstance(part, Topology)]
    return next((topology for topology in inside if topology.changes), inside[0] if inside else None)


def lossless(aggregator: Aggregator[Any]) -> bool:
    """Whether nothing is lost but rounding: the compressors are exact, and so is what combines."""
    inside = [part for part in parts_of(aggregator) if isinstance(part, Compressor | Aggregator)]
    return all(has(part, Capability.LOSSLESS) for part in inside)


def keeps_copies(aggregator: Aggregator[Any]) -> bool:
    """Whether ranks remember what their partners hold and send differences to that, as CHOCO does."""
    return any(has(part, Capability.TRACKS_PEER_COPIES) for part in parts_of(aggregator))


def takes_weights(aggregator: Aggregator[Any]) -> bool:
    """Whether whole weights may go through it, and not only gradients or what changed since: nothing is lost of them,
    or ranks remember their partners' and send differences."""
    return lossless(aggregator) or keeps_copies(aggregator)


def check_inner(memory: str, inner: Aggregator[Any], follows: bool = False) -> None:
    """For memories, when they are put around something: it must be an aggregator without a memory of the same loss.

    follows: it must not send differences (EF21) either, because the memory outside does.
    """
    if not isinstance(inner, Aggregator) or isinstance(inner, type):
        raise IncompatibleParts(
            f"{memory} goes around an aggregator, got {type(inner).__name__}; a compressor needs one of its own, such "
            f"as GatherMean({type(inner).__name__}(...)), which a text gives it by itself"
        )
    for part in parts_of(inner):
        if has(part, Capability.KEEPS_RESIDUAL) or (follows and has(part, Capability.SENDS_DIFFERENCES)):
            name = type(part).__name__
            raise IncompatibleParts(
                f"{memory} around {name}: both remember the same loss, which is then sent twice and grows without "
                f"bound; use one memory, {memory} or {name}"
            )
    if keeps_copies(inner):
        raise IncompatibleParts(
            f"{memory} remembers what was not sent, CHOCO loses nothing of what it is given; use choco(...) as it is"
        )
