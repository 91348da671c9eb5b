"""What a listener keeps about its peers: the last message of each and the answer to it."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from dataclasses import dataclass

_REMEMBERED = 4  # times max_connections: number of peers with a stored answer, disconnected ones included


@dataclass
class Session:
    """The last message of one peer. A repeated message gets the stored answer and is not handled twice."""

    generation: str
    sequence: int = 0
    answer: asyncio.Task[tuple[bytearray, str, int]] | None = None

    async def wait_answered(self) -> None:
        """Wait until the last message is answered; the next one is not read before, over any connection."""
        if self.answer is not None and not self.answer.done():
            await asyncio.wait([self.answer])


class Sessions:
    """The sessions of all peers, by name; those disconnected for longest are forgotten first."""

    def __init__(self, max_connections: int) -> None:
        self._max_sessions = _REMEMBERED * max_connections
        self._all: dict[str, Session] = {}

    def __getitem__(self, name: str) -> Session:
        return self._all[name]

    def open(self, name: str, generation: str, connected: Container[str]) -> None:
        """Open or reopen a peer's session; sessions of connected peers are kept."""
        session = self._all.pop(name, None)
        if session is None or session.generation != generation:  # a restarted peer counts from one again
            session = Session(generation, answer=None if session is None else session.answer)
        self._all[name] = session  # at the end: the order is that of the last connection
        excess = max(0, len(self._all) - self._max_sessions)
        for other in [n for n in self._all if n not in connected][:excess]:
            del self._all[other]

    def close(self, name: str) -> None:
        """Forget a peer that said goodbye."""
        self._all.pop(name, None)
