"""What a listener remembers of its peers: the last message of each and the answer to it."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from dataclasses import dataclass

_REMEMBERED = 4  # times most_connections: peers whose last answer is kept, those that are away included


@dataclass
class Session:
    """What is asked again is answered again and never handled twice."""

    generation: str
    sequence: int = 0
    answer: asyncio.Task[tuple[bytearray, str, int]] | None = None

    async def rest(self) -> None:
        """Until the last message is answered: the next one is not even read before, over whatever connection."""
        if self.answer is not None and not self.answer.done():
            await asyncio.wait([self.answer])


class Sessions:
    def __init__(self, most_connections: int) -> None:
        self._most = _REMEMBERED * most_connections
        self._all: dict[str, Session] = {}

    def __getitem__(self, name: str) -> Session:
        return self._all[name]

    def open(self, name: str, generation: str, here: Container[str]) -> None:
        """For a peer that comes, or comes back. here: those who are connected are not forgotten."""
        session = self._all.pop(name, None)
        if session is None or session.generation != generation:  # a peer that was started anew counts from one
            session = Session(generation, answer=None if session is None else session.answer)
        self._all[name] = session  # at the end: who was away longest is forgotten first
        spare = max(0, len(self._all) - self._most)
        for other in [n for n in self._all if n not in here][:spare]:
            del self._all[other]

    def close(self, name: str) -> None:
        self._all.pop(name, None)
