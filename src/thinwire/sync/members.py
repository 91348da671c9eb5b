"""The workers of a server: their clocks, and which of them wait.

Stale-synchronous parallel training (SSP, Ho et al., 2013): a worker may be at most `max_lead` steps ahead of the
slowest. 0 is bulk-synchronous, infinity asynchronous.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..core import CompositionError
from .messages import MAX_INT, UNKNOWN, Rejected


@dataclass(frozen=True)
class Staleness:
    """How far workers may be apart. Staleness() is asynchronous, Staleness(max_lead=0) bulk-synchronous.

    Args:
        max_lead: a worker starts a step only while it is at most this many steps ahead of the slowest (SSP).
        max_staleness: an update computed on a model that has since made more steps than this is rejected. For
            asynchronous training only: max_lead limits the staleness to 2·max_lead·(workers - 1).
    """

    max_lead: float = math.inf
    max_staleness: int | None = None

    def __post_init__(self) -> None:
        lead = self.max_lead
        if math.isnan(lead) or lead < 0 or (math.isfinite(lead) and lead != int(lead)):
            raise CompositionError(f"Staleness: max_lead must be an integer from 0, or inf, got {lead}; 3 is usual")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise CompositionError(
                f"Staleness: max_staleness must be at least 0, got {self.max_staleness}; None disables the limit"
            )
        if self.max_staleness is not None and lead < math.inf:
            raise CompositionError(
                f"Staleness: max_lead={lead:g} limits the staleness already; give max_staleness without max_lead"
            )


ASYNCHRONOUS = Staleness()


@dataclass
class Member:
    """The server's record of one worker; kept when the worker leaves, so that no update is applied twice."""

    clock: int = 0  # accepted updates; starts at the clock of the slowest worker when it joins
    step: int = -1  # the last step number that was answered
    last_accepted: int = -1  # the last step number that was accepted
    reason: str = ""  # why the last update was rejected
    text: str = ""
    since: float = 0.0  # when its present step started
    present: bool = True
    waiting: bool = False
    rejected: int = 0  # number of its rejected messages


class Members:
    """All workers by name. The lead of a worker is its clock minus that of the slowest worker present."""

    def __init__(self, staleness: Staleness, max_workers: int) -> None:
        self.staleness, self.max_workers = staleness, max_workers
        self.all: dict[str, Member] = {}

    def present(self) -> list[str]:
        """Names of the workers that have joined and not left, sorted."""
        return sorted(name for name, member in self.all.items() if member.present)

    def get(self, name: str) -> Member:
        """The record of a present worker; Rejected if it has not joined."""
        member = self.all.get(name)
        if member is None or not member.present:
            raise Rejected(UNKNOWN, f"{name!r} has not joined, or has left; join first")
        return member

    def join(self, name: str, now: float) -> Member:
        """Add a worker. A new or returning one starts at the slowest clock; a present one is unchanged."""
        if name not in self.all and len(self.all) >= self.max_workers:
            raise Rejected("full", f"{self.max_workers} workers have joined already; raise max_workers")
        member = self.all.get(name)
        if member is None or not member.present:
            clock = self.slowest() if self.present() else max((m.clock for m in self.all.values()), default=0)
            member = member or Member()
            member.clock, member.present, member.waiting, member.since = clock, True, False, now
            self.all[name] = member
        return member

    def leave(self, name: str) -> None:
        """Mark a worker as gone; its record is kept."""
        self.all[name].present = False

    def slowest(self) -> int:
        """Smallest clock of the present workers; if none is present, a value so large that all updates are applied."""
        return min((member.clock for member in self.all.values() if member.present), default=MAX_INT)

    def lead(self, clock: int) -> int:
        """Steps by which a clock is ahead of the slowest worker present."""
        return clock - self.slowest()

    def must_wait(self, clock: int) -> bool:
        """Whether a worker with this clock is too far ahead."""
        return self.lead(clock) > self.staleness.max_lead

    def update_waiting(self, now: float) -> None:
        """After clocks have changed: mark which workers wait; the step of one that is released starts now."""
        slowest = self.slowest()
        for member in self.all.values():
            waiting = member.clock - slowest > self.staleness.max_lead
            if member.waiting and not waiting:
                member.since = now
            member.waiting = waiting

    def overdue(self, now: float, timeout_s: float) -> list[str]:
        """Workers that started their present step more than `timeout_s` ago and do not wait for others."""
        return [n for n in self.present() if not self.all[n].waiting and now - self.all[n].since > timeout_s]

    def restart_timers(self, now: float) -> None:
        """Let the present step of every worker start now, after a state was loaded."""
        for member in self.all.values():
            member.since = now

    def state_dict(self) -> dict[str, Any]:
        """All records without times, because another process has another clock; see `restart_timers`."""
        return {name: {**asdict(member), "since": 0.0} for name, member in self.all.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore stored records."""
        self.all = {name: Member(**fields) for name, fields in state.items()}
