"""Local training as settings: when, what, through which exchange, and what is made of the average."""

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
from .optimizers import Average, Outer
from .policies import BSP, Every, SyncPolicy

PAYLOADS = ("deltas", "weights", "gradients")


@dataclass(frozen=True)
class Local:
    """So many local steps, then a round: what travels, through which exchange, and what is made of the average.

    every: a number of steps, or a policy. payload: "deltas" (anchor - weights), "weights", or "gradients" at each step.
    overlap: a round travels during step p, 2p, ...: that step's gradient, taken at the old weights, is applied to the
    average of the weights before it (Algorithm 1 of Tolstobrov, 2022). fragments: layers in so many groups that take
    turns; delay: a round is merged so many steps after it was sent; mixing: the share of the local weights that stays
    then (streaming DiLoCo).
    average_every: after so many rounds all ranks' weights are averaged densely, which is for gossip.
    """

    every: int | SyncPolicy = 1
    exchange: Aggregator[Any] = field(default_factory=Dense)
    outer: Outer = field(default_factory=Average)
    payload: str = "deltas"
    overlap: bool = False
    fragments: int = 1
    delay: int = 0
    mixing: float = 0.0
    average_every: int = 0

    def __post_init__(self) -> None:
        check_choice("local", "payload", self.payload, PAYLOADS)
        check_flag("local", "overlap", self.overlap)
        check_int("local", "fragments", self.fragments, 1, "1 sends all layers at once")
        check_int("local", "delay", self.delay, 0, "0 waits for each round")
        check_int("local", "average_every", self.average_every, 0, "0 means never")
        check_number("local", "mixing", self.mixing)
        if not 0 <= self.mixing < 1:
            raise CompositionError(
                f"local: mixing must be in [0, 1), got {self.mixing}; 0.5 keeps half of the local weights"
            )
        if not isinstance(self.every, SyncPolicy):
            check_int("local", "every", self.every, 1, "or a policy such as 'post_local(start=1000, period=16)'")
        if not isinstance(self.outer, Outer) or isinstance(self.outer, type):
            raise CompositionError(
                f"local: outer must be a text such as 'nesterov(lr=0.7, momentum=0.9)' or an outer optimizer, got "
                f"{self.outer!r}"
            )
        self.policy  # noqa: B018 (a wrong period is refused here)
        self._check_together()
        check_exchange(self.payload, [self.exchange])

    def _check_together(self) -> None:
        if self.payload == "gradients":
            others = {"overlap": False, "fragments": 1, "delay": 0, "mixing": 0.0, "outer": Average()}
            for name, plain in others.items():
                if getattr(self, name) != plain:
                    raise IncompatibleParts(f"local: {name} is for weights and deltas; gradients are just averaged")
            if self.policy not in (Every(1), BSP()):
                raise IncompatibleParts(
                    f"local: gradients travel at every step, got every={self.every}; deltas may travel less often"
                )
        if self.overlap and (self.delay or self.fragments > 1 or self.mixing):
            raise IncompatibleParts(
                "local: overlap merges a whole round before the next step; take it, or fragments, delay and mixing"
            )
        if not isinstance(self.policy, Every):
            if self.fragments > 1 or self.delay:
                raise IncompatibleParts(f"local: fragments and delay need a fixed period, got every={self.every}")
        elif self.delay >= self.policy.period:
            raise IncompatibleParts(
                f"local: a round must be merged before the next, got delay={self.delay} and every={self.every}"
            )

    @property
    def policy(self) -> SyncPolicy:
        return Every(self.every) if isinstance(self.every, int) else self.every

    @property
    def waits(self) -> bool:
        """Whether a round is merged as soon as it is answered; else workers go on meanwhile."""
        return not (self.overlap or self.delay)


def check_exchange(payload: str, exchanges: Iterable[Aggregator[Any]]) -> None:
    """Refuse what cannot work: weights through a lossy exchange, unless it keeps copies of them; copies of the rest."""
    for exchange in exchanges:
        if payload != "weights" and tracks_peer_copies(exchange):
            raise IncompatibleParts(
                f"local: {part_text(exchange)} follows its partners' weights, got payload={payload!r}; "
                'use payload="weights", or ef(gossip(...)) for deltas'
            )
        if payload != "weights" or accepts_weights(exchange):
            continue
        text, topology = part_text(exchange), topology_of(exchange)
        if topology is not None:
            instead = "" if topology.changes else f", or use choco(..., {part_text(topology)})"
            partners = f"whose partners change ({part_text(topology)})" if topology.changes else "of weights"
            raise IncompatibleParts(
                f"local: lossy gossip {partners} needs a copy of every peer's weights, and {text} keeps none; "
                f'send payload="deltas"{instead}'
            )
        raise IncompatibleParts(
            f"local: {text} loses a share of what it is given, and weights are much larger than what changes in them; "
            'send payload="deltas", or weights through dense()'
        )
