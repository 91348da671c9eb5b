"""A server's state on the disk: stored every so many updates, so that a server that was killed can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import checkpoint
from ..core import CheckpointError, CompositionError, ConfigMismatch, check_flag, check_int
from ..core.logs import get_logger
from ..sync.federated import Federation
from ..sync.server import Server

log = get_logger(__name__)
EVERY_UPDATES, EVERY_ROUNDS = 100, 1


@dataclass(frozen=True)
class Storage:
    """Where a server's state is stored, and what is done with one that is there already.

    every: updates, or federated rounds, between two stores; none: 100 updates, or each round. resume: go on from the
    state that is there. start_over: begin anew; the states that are there are deleted as new ones are stored.
    """

    folder: Path
    every: int | None = None
    resume: bool = False
    start_over: bool = False

    def __post_init__(self) -> None:
        if self.every is not None:
            check_int("serve", "store_every", self.every, 1, "100 is usual")
        check_flag("serve", "resume", self.resume)
        check_flag("serve", "start_over", self.start_over)
        if self.resume and self.start_over:
            raise CompositionError("serve: resume goes on from the stored state, start_over does not; give one of them")


def done_by(machine: Server | Federation) -> int:
    """Updates that were applied, or federated rounds that were closed."""
    return machine.round if isinstance(machine, Federation) else machine.applied


class Store:
    """The states of one machine. settings: what a resumed machine must have alike."""

    def __init__(self, storage: Storage, machine: Server | Federation, settings: Mapping[str, Any]) -> None:
        self.folder, self.machine, self.settings = storage.folder, machine, dict(settings)
        self.every = storage.every or (EVERY_ROUNDS if isinstance(machine, Federation) else EVERY_UPDATES)
        there = checkpoint.steps(self.folder)
        if storage.resume:
            self._load(there)
        elif there and not storage.start_over:
            raise CompositionError(
                f"serve: store: {self.folder} holds the state of a server after {there[-1]} updates or rounds; go on "
                "from it with resume (--resume), begin anew with start_over (--start-over), or give another folder"
            )
        self.save()  # so that a folder that cannot be written to is an error now, and the newest state is this run's

    def save(self) -> None:
        """Complete on the disk when this returns; until then the states before it stay as they are."""
        self.last = done_by(self.machine)
        state = {"weights": self.machine.weights, "settings": self.settings, "server": self.machine.state_dict()}
        checkpoint.save(self.folder, state, step=self.last)

    def look(self) -> None:
        """Store if enough has happened. A full disk does not stop the training: it is logged, and tried again later."""
        if done_by(self.machine) < self.last + self.every:
            return
        try:
            self.save()
        except CheckpointError as error:
            log.error("the server's state after %d updates or rounds could not be stored: %s", self.last, error)

    def _load(self, there: list[int]) -> None:
        if not there:
            raise CompositionError(f"serve: resume: {self.folder} holds no state of a server; leave out resume")
        state = checkpoint.load(self.folder)
        if "server" not in state:
            raise CompositionError(f"serve: resume: {self.folder} holds weights alone, stored by an older version")
        stored = dict(state.get("settings", {}))
        if "optimizer" in self.settings:
            stored.setdefault("optimizer", "sgd")  # the only one before states named it
        names = [name for name in {**self.settings, **stored} if self.settings.get(name) != stored.get(name)]
        if names:
            found = "; ".join(f"{n}: {self.settings.get(n)!r} here, {stored.get(n)!r} stored" for n in names)
            raise ConfigMismatch(f"serve: resume: {self.folder} is of a server with other settings: {found}")
        try:
            self.machine.load_state_dict(state["server"])
        except (CheckpointError, KeyError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"serve: resume: the state in {self.folder} does not fit this server: {error}; give the options it had"
            ) from error
        if isinstance(self.machine, Server) and not self.machine.members.present():
            self.machine.started = False  # all had left: it begins when as many as at first have come
