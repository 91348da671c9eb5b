"""Who works for a server, how far each is, and who has to wait."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..core import CompositionError
from .messages import MOST, Refused


@dataclass(frozen=True)
class Pace:
    """How far workers may drift apart. Pace() is asynchronous, Pace(bound=s) stale-synchronous, Pace(bound=0) in step.

    bound: a worker begins a step only while it is at most so many steps ahead of the slowest. max_staleness: an update
    worked out on a model that has since made more steps than this is refused; for asynchronous training, since a
    bound limits it by itself: 2·bound·(workers - 1).
    """

    bound: float = math.inf
    max_staleness: int | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.bound) or self.bound < 0 or (math.isfinite(self.bound) and self.bound != int(self.bound)):
            raise CompositionError(f"Pace: bound must be a whole number from 0, or inf, got {self.bound}; 3 is usual")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise CompositionError(
                f"Pace: max_staleness must be at least 0, got {self.max_staleness}; none refuses none"
            )
        if self.max_staleness is not None and self.bound < math.inf:
            raise CompositionError(
                f"Pace: bound={self.bound:g} limits staleness already; give max_staleness without a bound"
            )


ASYNCHRONOUS = Pace()


@dataclass
class Member:
    """One worker as the server knows it; kept when it goes, so that no update of it can be applied twice."""

    clock: int = 0  # steps of it that were accepted, or the slowest worker's when it came
    step: int = -1  # the last step number it was answered for
    settled: int = -1  # the last one that was accepted
    reason: str = ""  # why the last one was refused
    text: str = ""
    since: float = 0.0  # it has been at its present step since then
    present: bool = True
    waiting: bool = False
    refused: int = 0


class Members:
    """All workers by name. `lead` is how many steps one is ahead of the slowest that is present."""

    def __init__(self, pace: Pace, most: int) -> None:
        self.pace, self.most = pace, most
        self.all: dict[str, Member] = {}

    def present(self) -> list[str]:
        return sorted(name for name, member in self.all.items() if member.present)

    def get(self, name: str) -> Member:
        member = self.all.get(name)
        if member is None or not member.present:
            raise Refused("unknown", f"{name!r} does not work here (any more); join first")
        return member

    def come(self, name: str, now: float) -> Member:
        """A new worker, or one that was away, begins where the slowest is; who is here already stays as it is."""
        if name not in self.all and len(self.all) >= self.most:
            raise Refused("full", f"{self.most} workers have come already; raise most_workers")
        member = self.all.get(name)
        if member is None or not member.present:
            clock = self.slowest() if self.present() else max((m.clock for m in self.all.values()), default=0)
            member = member or Member()
            member.clock, member.present, member.waiting, member.since = clock, True, False, now
            self.all[name] = member
        return member

    def go(self, name: str) -> None:
        self.all[name].present = False

    def slowest(self) -> int:
        """Nobody waits for nobody: where all have gone, what they left is due."""
        return min((member.clock for member in self.all.values() if member.present), default=MOST)

    def lead(self, clock: int) -> int:
        return clock - self.slowest()

    def must_wait(self, clock: int) -> bool:
        return self.lead(clock) > self.pace.bound

    def look(self, now: float) -> None:
        """After clocks have moved: whoever need not wait any longer has its time from now on."""
        slowest = self.slowest()
        for member in self.all.values():
            waiting = member.clock - slowest > self.pace.bound
            if member.waiting and not waiting:
                member.since = now
            member.waiting = waiting

    def overdue(self, now: float, deadline: float) -> list[str]:
        """Those who were let go on so long ago and have not been heard of; who waits for others is not at fault."""
        return [n for n in self.present() if not self.all[n].waiting and now - self.all[n].since > deadline]

    def resume(self, now: float) -> None:
        for member in self.all.values():
            member.since = now

    def state_dict(self) -> dict[str, Any]:
        """Without times: another process reads another clock. `resume` gives them."""
        return {name: {**asdict(member), "since": 0.0} for name, member in self.all.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.all = {name: Member(**fields) for name, fields in state.items()}
