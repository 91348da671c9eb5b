"""A server behind sockets: workers whose connection broke, the end of the training, states stored on the way."""

from __future__ import annotations

from ..core import Message
from ..sync.federated import Federation
from ..sync.server import Server
from .store import Store


class Supervisor:
    """A `Server` or a `Federation`, and the workers that are away without having said `leave`.

    A lost worker holds no other up; but it may call again, and then it goes on. Only when it has been away for
    `patience` seconds is it not expected any more. With a store, the state is stored before the answer to the update
    that made it due.
    """

    def __init__(self, machine: Server | Federation, patience: float, store: Store | None = None) -> None:
        self.machine, self.patience, self.store = machine, patience, store
        self.away: dict[str, float] = {}  # since when
        self.saw_leave = False  # in this process: a resumed federation waits for clients that left the one before

    def handle(self, message: Message, now: float) -> Message:
        self._expire(now)
        reply = self.machine.handle(message, now)
        self.saw_leave |= reply.kind == "bye"
        if message.kind == "leave" or self._is_here(message.sender):
            self.away.pop(message.sender, None)
        self._store_if_due()
        return reply

    def expire(self, now: float) -> list[str]:
        late = self._expire(now)
        self._store_if_due()
        return late

    def lose(self, name: str, now: float) -> None:
        """The line to it broke."""
        if not self._is_here(name):
            return
        self.away[name] = now
        if isinstance(self.machine, Server):  # a federated round ends at its deadline, whichever clients are away
            self.machine.handle(Message("leave", name), now)

    def is_over(self, now: float) -> bool:
        if isinstance(self.machine, Federation):
            return self.machine.done or bool(self.desertion())
        waiting = any(now - since <= self.patience for since in self.away.values())
        return self.machine.started and not self.machine.members.present() and not waiting

    def desertion(self) -> str:
        """Empty, or says that all clients of a federation have left by themselves before the last round."""
        if not isinstance(self.machine, Federation) or self.machine.done or not self.saw_leave:
            return ""
        if not all(client.has_left for client in self.machine.clients.values()):
            return ""
        round, rounds = self.machine.round, self.machine.rounds.rounds
        return f"all {len(self.machine.clients)} clients left in round {round} of {rounds}"

    def news(self) -> str:
        away = f", {len(self.away)} away" if self.away else ""
        if isinstance(self.machine, Federation):
            return (
                f"round {self.machine.round} of {self.machine.rounds.rounds}, {len(self.machine.clients)} clients{away}"
            )
        here = len(self.machine.members.present())
        return f"{self.machine.applied} updates, {here} of {self.machine.workers} workers here{away}"

    def _expire(self, now: float) -> list[str]:
        late = self.machine.expire(now)
        if isinstance(self.machine, Server):  # a client that misses a round is in the next one all the same
            self.away.update(dict.fromkeys(late, now))
        return late

    def _store_if_due(self) -> None:
        if self.store is not None:
            self.store.look()

    def _is_here(self, name: str) -> bool:
        if isinstance(self.machine, Federation):
            return name in self.machine.clients
        return name in self.machine.members.all and self.machine.members.all[name].present
