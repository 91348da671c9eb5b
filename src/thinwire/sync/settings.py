"""Settings of local training: Local SGD (Stich, 2019), DiLoCo (Douillard et al., 2023) and its streaming form (2025).

Each rank takes local steps; a synchronization round averages what changed and applies the average with an outer
optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..aggregators import Dense
from ..catalog import part_text
from ..core import (
    Aggregator,
    CompositionError,
    IncompatibleParts,
    accepts_weights,
    check_choice,
    check_flag,
    check_int,
    check_number,
    topology_of,
    tracks_peer_copies,
)
from .optimizers import Average, OuterOptimizer
from .policies import BSP, Every, SyncPolicy

PAYLOADS = ("deltas", "weights", "gradients")


@dataclass(frozen=True)
class Local:
    """When replicas are synchronized, what is sent, and how the average is applied.

    Args:
        sync_every: local steps between two rounds, or a policy.
        composition: what a round sends through.
        outer_optimizer: applies the averaged delta.
        payload: "deltas" (anchor - weights), "weights", or "gradients" in each step.
        overlap: a round is sent during step p, 2p, ...; the gradient of that step, taken at the old weights, is applied
            to the average of the weights before it (Algorithm 1 of Tolstobrov, 2022).
        num_fragments: groups of layers that are synchronized in turn (streaming DiLoCo, Douillard et al., 2025).
        fragment_sync_delay: steps between sending a round and merging its result.
        fragment_update_alpha: share of the local weights that is kept when a result is merged, in [0, 1).
        full_average_every: rounds between two dense averages of all ranks' weights, for gossip; 0: never.
    """

    sync_every: int | SyncPolicy = 1
    composition: Aggregator[Any] = field(default_factory=Dense)
    outer_optimizer: OuterOptimizer = field(default_factory=Average)
    payload: str = "deltas"
    overlap: bool = False
    num_fragments: int = 1
    fragment_sync_delay: int = 0
    fragment_update_alpha: float = 0.0
    full_average_every: int = 0

    def __post_init__(self) -> None:
        check_choice("local", "payload", self.payload, PAYLOADS)
        check_flag("local", "overlap", self.overlap)
        check_int("local", "num_fragments", self.num_fragments, 1, "1 sends all layers at once")
        check_int("local", "fragment_sync_delay", self.fragment_sync_delay, 0, "0 waits for each round")
        check_int("local", "full_average_every", self.full_average_every, 0, "0 means never")
        check_number("local", "fragment_update_alpha", self.fragment_update_alpha)
        if not 0 <= self.fragment_update_alpha < 1:
            raise CompositionError(
                f"local: fragment_update_alpha must be in [0, 1), got {self.fragment_update_alpha}; 0.5 keeps half of "
                "the local weights"
            )
        if not isinstance(self.sync_every, SyncPolicy):
            usual = "or a policy such as 'post_local(start=1000, period=16)'"
            check_int("local", "sync_every", self.sync_every, 1, usual)
        if not isinstance(self.outer_optimizer, OuterOptimizer) or isinstance(self.outer_optimizer, type):
            raise CompositionError(
                "local: outer_optimizer must be a text such as 'nesterov(lr=0.7, momentum=0.9)' or an outer optimizer, "
                f"got {self.outer_optimizer!r}"
            )
        self.policy  # noqa: B018 (raises for a wrong period)
        self._check_combination()
        check_composition(self.payload, [self.composition])

    def _check_combination(self) -> None:
        if self.payload == "gradients":
            defaults = {
                "overlap": False, "num_fragments": 1, "fragment_sync_delay": 0, "fragment_update_alpha": 0.0,
                "outer_optimizer": Average(),
            }  # fmt: skip
            for name, default in defaults.items():
                if getattr(self, name) != default:
                    raise IncompatibleParts(
                        f'local: {name} applies to weights and deltas; payload="gradients" averages them in each step'
                    )
            if self.policy not in (Every(1), BSP()):
                raise IncompatibleParts(
                    f'local: payload="gradients" is sent at every step, got sync_every={self.sync_every}; '
                    'use payload="deltas" to send less often'
                )
        if self.overlap and (self.fragment_sync_delay or self.num_fragments > 1 or self.fragment_update_alpha):
            raise IncompatibleParts(
                "local: overlap merges a whole round before the next step; use it, or num_fragments, "
                "fragment_sync_delay and fragment_update_alpha"
            )
        if not isinstance(self.policy, Every):
            if self.num_fragments > 1 or self.fragment_sync_delay:
                raise IncompatibleParts(
                    "local: num_fragments and fragment_sync_delay need a fixed period, got "
                    f"sync_every={self.sync_every}; use a number of steps"
                )
        elif self.fragment_sync_delay >= self.policy.period:
            raise IncompatibleParts(
                "local: a round must be merged before the next one starts, got "
                f"fragment_sync_delay={self.fragment_sync_delay} and sync_every={self.sync_every}"
            )

    @property
    def policy(self) -> SyncPolicy:
        """When a round is due."""
        return Every(self.sync_every) if isinstance(self.sync_every, int) else self.sync_every

    @property
    def is_blocking(self) -> bool:
        """Whether a round is merged as soon as it is answered; else workers continue meanwhile."""
        return not (self.overlap or self.fragment_sync_delay)


def check_composition(payload: str, compositions: Iterable[Aggregator[Any]]) -> None:
    """Raise IncompatibleParts for weights through a lossy composition, or for one that tracks peers' weights."""
    for composition in compositions:
        if payload != "weights" and tracks_peer_copies(composition):
            raise IncompatibleParts(
                f"local: {part_text(composition)} tracks its neighbors' weights, got payload={payload!r}; "
                'use payload="weights", or ef(gossip(...)) for deltas'
            )
        if payload != "weights" or accepts_weights(composition):
            continue
        text, topology = part_text(composition), topology_of(composition)
        if topology is not None:
            instead = "" if topology.changes else f", or use choco(..., {part_text(topology)})"
            neighbors = f"with neighbors that change ({part_text(topology)})" if topology.changes else "of weights"
            raise IncompatibleParts(
                f"local: lossy gossip {neighbors} needs a copy of every peer's weights, and {text} keeps none; "
                f'send payload="deltas"{instead}'
            )
        raise IncompatibleParts(
            f"local: {text} drops a share of what it sends, and weights are much larger than their changes; "
            'send payload="deltas", or weights through dense()'
        )
