"""Protocols: `Driver` runs the programs of one rank, `RunAll` those of all ranks of a simulated world.

`Transport` carries the messages between a worker and its server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..core import Message, Program, World
from .meter import Meter

if TYPE_CHECKING:
    from .sockets.protocol import ByteCounter

T = TypeVar("T")


class Driver(Protocol):
    """Runs programs as one rank: `TorchDist` in a process group, `SingleRank` in a world of one.

    clock: seconds, for decisions by measured time; None where runs must repeat bit for bit.
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

    def submit(
        self, program: Program[T], ahead: bool = False, after: Future[Any] | None = None, channel: int = 0
    ) -> Future[T]:
        """Queue a program; all ranks queue in the same order.

        Args:
            program: the program to run.
            ahead: the program may be started, up to its first request, while earlier ones wait for answers.
            after: the future of an earlier program; if that one has failed, this one sends nothing and fails alike.
            channel: programs with `ahead` of different channels may be under way at the same time, so that one computes
                while another one sends. All others wait for all programs before them.
        """
        ...

    def set_meter(self, meter: Meter) -> Meter:
        """Count with this meter from the next program on; return the previous one. Call it while nothing runs."""
        ...

    def barrier(self) -> None:
        """Return when all ranks have called it. Its bytes are not counted."""
        ...

    def close(self) -> None:
        """Finish the submitted programs. Every later call except `close` raises ClosedError."""
        ...


class RunAll(Protocol):
    """Runs all ranks of a world in one process: `lockstep`, or a simulator with a virtual clock."""

    def __call__(self, programs: Sequence[Program[T]], meters: Sequence[Meter] | None = None) -> list[T]:
        """Run one program per rank to its end; return the results in rank order. `meters`: one per rank."""
        ...


class Transport(Protocol):
    """Sends a worker's messages to its server: `Connection` over a socket, `InProcess` by a function call."""

    @property
    def traffic(self) -> ByteCounter:
        """Bytes sent and received, in total and by kind of message."""
        ...

    def call(self, message: Message) -> Message:
        """Send a message and return the reply; sender and sequence number are filled in.

        Raises:
            ProtocolError: the server's handler raised an error.
        """
        ...

    def close(self) -> None:
        """Every later call raises ClosedError at once."""
        ...
