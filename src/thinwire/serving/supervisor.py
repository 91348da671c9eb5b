"""A server behind sockets: lost workers, the end of the training, and saving on the way."""

from __future__ import annotations

from ..core import Message
from ..sync.federated import FederatedServer
from ..sync.server import GradientServer
from .state_store import StateStore


class Supervisor:
    """Wraps a server and tracks workers that lost their connection without saying `leave`.

    A lost worker is removed at once, so that no other worker waits for it, and may rejoin; after `timeout_s` it is not
    expected any more. With a store, the state is saved before the reply to the update that made it due.
    """

    def __init__(
        self, server: GradientServer | FederatedServer, timeout_s: float, store: StateStore | None = None
    ) -> None:
        self.server, self.timeout_s, self.store = server, timeout_s, store
        self.lost: dict[str, float] = {}  # lost workers, with the time they were lost
        self.any_left = False  # in this process: a resumed server waits for clients that left the one before

    def handle(self, message: Message, now: float) -> Message:
        """The reply to a message."""
        self._expire(now)
        reply = self.server.handle(message, now)
        self.any_left |= reply.kind == "bye"
        if message.kind == "leave" or self._is_present(message.sender):
            self.lost.pop(message.sender, None)
        self._save_if_due()
        return reply

    def expire(self, now: float) -> list[str]:
        """Stop waiting for overdue workers and return their names."""
        overdue = self._expire(now)
        self._save_if_due()
        return overdue

    def mark_lost(self, name: str, now: float) -> None:
        """The connection of a worker broke."""
        if not self._is_present(name):
            return
        self.lost[name] = now
        if isinstance(self.server, GradientServer):  # a federated round ends at its timeout anyway
            self.server.handle(Message("leave", name), now)

    def is_over(self, now: float) -> bool:
        """Whether the training has ended: all rounds are done, or all workers have left and none is expected back."""
        if isinstance(self.server, FederatedServer):
            return self.server.is_done or bool(self.describe_unfinished())
        is_expected = any(now - lost_at <= self.timeout_s for lost_at in self.lost.values())
        return self.server.started and not self.server.members.present() and not is_expected

    def describe_unfinished(self) -> str:
        """A text if all clients of a federated server left before the last round; else empty."""
        if not isinstance(self.server, FederatedServer) or self.server.is_done or not self.any_left:
            return ""
        if not all(client.has_left for client in self.server.clients.values()):
            return ""
        round, rounds = self.server.round, self.server.settings.rounds
        return f"all {len(self.server.clients)} clients left in round {round} of {rounds}"

    def status(self) -> str:
        """One line on the progress."""
        lost = f", {len(self.lost)} lost" if self.lost else ""
        if isinstance(self.server, FederatedServer):
            rounds = f"round {self.server.round} of {self.server.settings.rounds}"
            return f"{rounds}, {len(self.server.clients)} clients{lost}"
        present = len(self.server.members.present())
        return f"{self.server.applied} updates, {present} of {self.server.workers} workers present{lost}"

    def _expire(self, now: float) -> list[str]:
        overdue = self.server.expire(now)
        if isinstance(self.server, GradientServer):  # a client that misses a round takes part in the next one
            self.lost.update(dict.fromkeys(overdue, now))
        return overdue

    def _save_if_due(self) -> None:
        if self.store is not None:
            self.store.save_if_due()

    def _is_present(self, name: str) -> bool:
        if isinstance(self.server, FederatedServer):
            return name in self.server.clients
        return name in self.server.members.all and self.server.members.all[name].present
