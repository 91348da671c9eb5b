"""TCP connections between all ranks of a group, and one loop that sends and receives on them at once.

The loop wakes up for many bytes at a time (SO_RCVLOWAT): on a thin link a message arrives in hundreds of packets, and a
thread that wakes up for each of them takes the core from the backward pass. Gloo's point-to-point messages wake up 220
times for 330 kB at 100 Mbit/s and take 3.4 ms of CPU time, this loop 13 times and 1 ms.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
import weakref
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from torch import Tensor

from ..core import World
from .mesh_setup import connect_all

Buffer: TypeAlias = "memoryview[int]"
Receiver: TypeAlias = Generator[Buffer, None, None]  # yields the buffers to fill, one after another

_WAKE_BYTES = 1 << 17  # received at least before the loop wakes up, if as many are missing
_MIN_RTT_AT = 148  # offset of tcpi_min_rtt, in microseconds, in Linux's struct tcp_info
_LOST = select.POLLERR | select.POLLHUP | select.POLLNVAL


class LostConnection(Exception):
    """A transfer failed: the ranks concerned, and whether they closed the connection or did not answer in time."""

    def __init__(self, ranks: Sequence[int], closed: bool) -> None:
        super().__init__(list(ranks), closed)
        self.ranks, self.closed = list(ranks), closed


def bytes_of(tensor: Tensor) -> Buffer:
    """The memory of a contiguous vector of bytes on the CPU."""
    return memoryview(tensor.numpy())  # type: ignore[arg-type]


class Mesh:
    """One connection to each other rank.

    Args:
        world: this rank and the number of ranks.
        store: the group's key-value store, with keys of this mesh only.
        timeout_s: seconds to wait for a connection, and later for any progress of a transfer.
    """

    def __init__(self, world: World, store: Any, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._sockets = connect_all(world, store, timeout_s)
        for connection in self._sockets.values():
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wake_bytes = dict.fromkeys(self._sockets, 1)
        self.close = weakref.finalize(self, _close_all, list(self._sockets.values()))  # also when it is collected

    def transfer(self, outgoing: Mapping[int, list[Buffer]], incoming: Mapping[int, Receiver]) -> int:
        """Send the buffers for each rank and fill those of each receiver, all at once.

        Args:
            outgoing: the buffers for each rank, which are removed when they are sent. A receiver may append to these
                lists: what has been received is forwarded so.
            incoming: a receiver for each source.

        Returns:
            The number of bytes sent.

        Raises:
            LostConnection: a peer closed its connection, or nothing moved for `timeout_s` seconds.
        """
        receiving: dict[int, tuple[Receiver, Buffer]] = {}
        for rank, receiver in incoming.items():
            if (buffer := _next_buffer(receiver)) is not None:
                receiving[rank] = receiver, buffer
        num_sent, blocked = 0, set[int]()  # ranks whose connections take no more bytes for now
        poller, masks = select.poll(), dict[int, int]()
        files = {self._sockets[rank].fileno(): rank for rank in {*outgoing, *receiving}}
        deadline = time.monotonic() + self.timeout_s
        while True:
            for rank, buffers in outgoing.items():
                if buffers and rank not in blocked:
                    num_sent += self._send(rank, buffers)
                    blocked |= {rank} if buffers else set()
            if not (receiving or blocked):
                return num_sent
            for file, rank in files.items():
                wanted = (select.POLLOUT if rank in blocked else 0) | (select.POLLIN if rank in receiving else 0)
                if rank in receiving:
                    self._set_wake_bytes(rank, receiving[rank][1].nbytes)
                if masks.get(file, 0) != wanted:
                    masks[file] = wanted
                    poller.register(file, wanted) if wanted else poller.unregister(file)
            events = poller.poll(max(0.0, deadline - time.monotonic()) * 1e3)
            if not events and time.monotonic() >= deadline:
                raise LostConnection(sorted({*receiving} or blocked), closed=False)
            for file, event in events:
                rank = files[file]
                if event & (select.POLLOUT | _LOST):
                    blocked.discard(rank)
                if rank in receiving and event & (select.POLLIN | _LOST):
                    self._receive(rank, receiving)
                deadline = time.monotonic() + self.timeout_s

    def round_trip_s(self) -> float:
        """The longest of the shortest round trips that the system has seen on each connection; 0 if it cannot tell."""
        return max([_read_round_trip_s(connection) for connection in self._sockets.values()], default=0.0)

    def disconnect(self) -> None:
        """Make every transfer fail at once, from any thread."""
        for connection in self._sockets.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _set_wake_bytes(self, rank: int, missing: int) -> None:
        wake_bytes = min(missing, _WAKE_BYTES)
        if self._wake_bytes[rank] != wake_bytes:
            with suppress(OSError):  # a system without this option wakes up more often
                self._sockets[rank].setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)
            self._wake_bytes[rank] = wake_bytes

    def _send(self, rank: int, buffers: list[Buffer]) -> int:
        """Send what the connection takes, and remove it from the list; returns the number of bytes."""
        total = 0
        while buffers:
            try:
                sent = self._sockets[rank].sendmsg(buffers[:8])
            except BlockingIOError:
                return total
            except OSError as error:
                raise LostConnection([rank], closed=True) from error
            total += sent
            while buffers and sent >= buffers[0].nbytes:
                sent -= buffers.pop(0).nbytes
            if sent:
                buffers[0] = buffers[0][sent:]
                return total
        return total

    def _receive(self, rank: int, receiving: dict[int, tuple[Receiver, Buffer]]) -> None:
        receiver, buffer = receiving[rank]
        try:
            received = self._sockets[rank].recv_into(buffer)
        except BlockingIOError:
            return
        except OSError as error:
            raise LostConnection([rank], closed=True) from error
        if not received:
            raise LostConnection([rank], closed=True)
        remaining = buffer[received:] if received < buffer.nbytes else _next_buffer(receiver)
        if remaining is None:
            del receiving[rank]
        else:
            receiving[rank] = receiver, remaining


def _read_round_trip_s(connection: socket.socket) -> float:
    if sys.platform == "linux":
        with suppress(OSError):
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + 4)
            if len(info) == _MIN_RTT_AT + 4:
                return float(struct.unpack_from("=I", info, _MIN_RTT_AT)[0]) / 1e6
    return 0.0


def _close_all(connections: Sequence[socket.socket]) -> None:
    for connection in connections:
        connection.close()


def receive_into(*buffers: Buffer) -> Receiver:
    """A receiver of messages with known lengths."""
    yield from buffers


def _next_buffer(receiver: Receiver) -> Buffer | None:
    """The next buffer that is not empty; None at the end."""
    return next((buffer for buffer in receiver if buffer.nbytes), None)
