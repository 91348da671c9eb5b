"""A server's state on disk, saved every few updates, so that a killed server can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import checkpoint
from ..core import CheckpointError, CompositionError, ConfigMismatch, check_flag, check_int
from ..core.logs import get_logger
from ..sync.federated import FederatedServer
from ..sync.server import GradientServer

log = get_logger(__name__)
DEFAULT_UPDATES, DEFAULT_ROUNDS = 100, 1  # between two saves


@dataclass(frozen=True)
class SaveConfig:
    """Where a server's state is saved, and what is done with one that exists.

    Args:
        folder: of the states.
        every: updates, or federated rounds, between two saves; None: 100 updates, or each round.
        resume: continue from the newest state in the folder.
        start_over: start from the beginning; existing states are deleted as new ones are saved.
    """

    folder: Path
    every: int | None = None
    resume: bool = False
    start_over: bool = False

    def __post_init__(self) -> None:
        if self.every is not None:
            check_int("serve", "save_every", self.every, 1, "100 is usual")
        check_flag("serve", "resume", self.resume)
        check_flag("serve", "start_over", self.start_over)
        if self.resume and self.start_over:
            raise CompositionError(
                "serve: resume continues from the saved state, start_over does not; pass one of them"
            )


def count_done(server: GradientServer | FederatedServer) -> int:
    """Applied updates, or closed federated rounds."""
    return server.round if isinstance(server, FederatedServer) else server.applied


class StateStore:
    """The saved states of one server. settings: those that a resumed server must share."""

    def __init__(
        self, config: SaveConfig, server: GradientServer | FederatedServer, settings: Mapping[str, Any]
    ) -> None:
        self.folder, self.server, self.settings = config.folder, server, dict(settings)
        self.every = config.every or (DEFAULT_ROUNDS if isinstance(server, FederatedServer) else DEFAULT_UPDATES)
        existing = checkpoint.steps(self.folder)
        if config.resume:
            self._load(existing)
        elif existing and not config.start_over:
            raise CompositionError(
                f"serve: save: {self.folder} has the state of a server after {existing[-1]} updates or rounds; "
                "continue with resume (--resume), start again with start_over (--start-over), or use another folder"
            )
        self.save()  # at once, so that a folder that cannot be written is an error now, and the newest state is ours

    def save(self) -> None:
        """Write the state; it is complete on disk when this returns. Until then earlier states are unchanged."""
        self.last_saved = count_done(self.server)
        state = {"weights": self.server.weights, "settings": self.settings, "server": self.server.state_dict()}
        checkpoint.save(self.folder, state, step=self.last_saved)

    def save_if_due(self) -> None:
        """Save if enough updates have been applied. A full disk is logged and does not stop the training."""
        if count_done(self.server) < self.last_saved + self.every:
            return
        try:
            self.save()
        except CheckpointError as error:
            log.error("the server's state after %d updates or rounds could not be saved: %s", self.last_saved, error)

    def _load(self, existing: list[int]) -> None:
        if not existing:
            raise CompositionError(f"serve: resume: {self.folder} has no state of a server; leave out resume")
        state = checkpoint.load(self.folder)
        if "server" not in state:
            raise CompositionError(f"serve: resume: {self.folder} has weights only, saved by an older version")
        stored = dict(state.get("settings", {}))
        if "optimizer" in self.settings:
            stored.setdefault("optimizer", "sgd")  # the only one before states named it
        names = [name for name in {**self.settings, **stored} if self.settings.get(name) != stored.get(name)]
        if names:
            differences = "; ".join(f"{n}: {self.settings.get(n)!r} here, {stored.get(n)!r} saved" for n in names)
            raise ConfigMismatch(f"serve: resume: the server saved in {self.folder} has other settings: {differences}")
        try:
            self.server.load_state_dict(state["server"])
        except (CheckpointError, KeyError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"serve: resume: the state in {self.folder} does not fit this server: {error}; pass the options it had"
            ) from error
        if isinstance(self.server, GradientServer) and not self.server.members.present():
            self.server.started = False  # all workers had left: training starts again with `workers` of them
