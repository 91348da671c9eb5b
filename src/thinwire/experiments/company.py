"""Who works for a machine behind sockets, who is away, and when there is nobody left to wait for."""

from __future__ import annotations

from ..core import Message
from ..sync.federated import Federation
from ..sync.server import Server


class Company:
    """A `Server` or a `Federation`, and who is away without having said `leave`.

    Nobody works with a lost worker in mind, so that it holds nobody up; but it may call again, and then it goes on.
    Only when it has been away for `patience` seconds is it not expected any more.
    """

    def __init__(self, machine: Server | Federation, patience: float) -> None:
        self.machine, self.patience = machine, patience
        self.away: dict[str, float] = {}  # since when
        self.saw_leave = False  # in this process: a resumed federation waits for clients that left the one before

    def handle(self, message: Message, now: float) -> Message:
        self.expire(now)
        reply = self.machine.handle(message, now)
        self.saw_leave |= reply.kind == "bye"
        if message.kind == "leave" or self._is_here(message.sender):
            self.away.pop(message.sender, None)
        return reply

    def expire(self, now: float) -> list[str]:
        late = self.machine.expire(now)
        if isinstance(self.machine, Server):  # a client that misses a round is in the next one all the same
            self.away.update(dict.fromkeys(late, now))
        return late

    def lose(self, name: str, now: float) -> None:
        """The line to it broke."""
        if not self._is_here(name):
            return
        self.away[name] = now
        if isinstance(self.machine, Server):  # a federated round ends at its deadline whoever is away
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

    def _is_here(self, name: str) -> bool:
        if isinstance(self.machine, Federation):
            return name in self.machine.clients
        return name in self.machine.members.all and self.machine.members.all[name].present
