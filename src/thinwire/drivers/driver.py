"""What carries programs (`Driver`: one rank among others; `RunAll`: all ranks of a simulated world) and messages.

A `Transport` carries messages between a worker and its server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..core import Message, Program, World
from .meter import Meter

if TYPE_CHECKING:
    from .sockets.talking import Crossings

T = TypeVar("T")


class Driver(Protocol):
    """One rank. `TorchDist` is one of several processes, `Alone` a world of one.

    clock: for decisions by measured time; None where runs must repeat bit for bit.
    """

    @property
    def meter(self) -> Meter: ...

    @property
    def clock(self) -> Callable[[], float] | None: ...

    @property
    def world(self) -> World: ...

    @property
    def is_closed(self) -> bool: ...

    def run(self, program: Program[T]) -> T:
        """Run a program to its end and return its result."""
        ...

    def submit(self, program: Program[T], ahead: bool = False, after: Future[Any] | None = None) -> Future[T]:
        """Queue a program; all ranks queue in the same order.

        Args:
            program: what to run.
            ahead: it may be begun, up to its first request, while earlier ones wait for answers.
            after: a program queued before; if that one failed, this one sends nothing and fails alike.
        """
        ...

    def count_with(self, meter: Meter) -> Meter:
        """Count with this meter from the next program on, and return the one before. Call it while nothing runs."""
        ...

    def barrier(self) -> None:
        """Return when all ranks have called it. It belongs to no algorithm, and no meter."""
        ...

    def close(self) -> None:
        """Finish what was submitted. Every later call but this one raises ClosedError."""
        ...


class RunAll(Protocol):
    """All ranks of a world in one process: `lockstep`, or a simulation with a clock of its own."""

    def __call__(self, programs: Sequence[Program[T]], meters: Sequence[Meter] | None = None) -> list[T]:
        """One program per rank, to its end; results in rank order. `meters` count as real ranks would."""
        ...


class Transport(Protocol):
    """Requests of one worker and the replies of its server. `Connection` goes over a socket, `InProcess` over none."""

    @property
    def traffic(self) -> Crossings:
        """Bytes sent and received, and whole frames by kind of message."""
        ...

    def call(self, message: Message) -> Message:
        """The reply. Sender and sequence are filled in. An error of the server's handler is a ProtocolError here."""
        ...

    def close(self) -> None:
        """Every later call raises ClosedError at once."""
        ...
