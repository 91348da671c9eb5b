"""Measure whether the links of a network have their rate: all workers send to the next one in a ring at the same time.

A long transfer shows whether the rate is reached; short messages, such as compressed gradients, whether these are
shaped. Receivers take the times.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thinwire.core import AllReduce, Program
from thinwire.drivers.driver import Driver
from thinwire.drivers.processes import run_ranks

from .network import Network, rate_bits

# seconds of a message at the rate, and the allowed range of measured / nominal rate: frames take 5 %, the burst adds
# to short messages, and a busy machine is slower
MESSAGES = {"long": (1.0, 0.75, 1.02), "50 ms": (0.05, 0.6, 1.2), "5 ms": (0.005, 0.0, 2.0)}
_MIN_BYTES = 30_000  # twenty frames; shorter messages are too noisy
_UNSHAPED_BITS = 2e9  # rate that sets the sizes of messages where links are not shaped
_REPETITIONS = 5
_PORT = 7000


@dataclass(frozen=True)
class Goodput:
    """Goodput of one size of message: median of the slowest and of the fastest worker."""

    message: str
    num_bytes: int
    slowest_bits_per_s: float
    fastest_bits_per_s: float
    obeyed: bool | None  # whether it is in the allowed range; None where links are not shaped


def measure_goodput(net: Network) -> list[Goodput]:
    """Measure all sizes of messages."""
    bits = rate_bits(net.rate)
    sizes = [int(max(_MIN_BYTES, (bits or _UNSHAPED_BITS) / 8 * seconds)) for seconds, _, _ in MESSAGES.values()]
    argument = {"addresses": [host.address for host in net.hosts], "sizes": sizes}
    measured = run_ranks(
        len(net.hosts), "thinwire_lab.testbed.goodput:run_rank", argument, command_prefixes=net.command_prefixes()
    )
    return [
        judge_goodput(name, size, bits, of)
        for name, size, of in zip(MESSAGES, sizes, zip(*measured, strict=True), strict=True)
    ]


def judge_goodput(message: str, num_bytes: int, rate: float | None, bits_per_s: Sequence[float]) -> Goodput:
    _, lowest, highest = MESSAGES[message]
    slowest, fastest = min(bits_per_s), max(bits_per_s)
    obeyed = None if rate is None else lowest * rate <= slowest and fastest <= highest * rate
    return Goodput(message, num_bytes, slowest, fastest, obeyed)


def run_rank(driver: Driver, argument: dict[str, Any], on_progress: object) -> list[float]:
    """One rank's part: median of the bits per second that it received, for each size of message."""
    rank, size = driver.world
    addresses, port = argument["addresses"], _PORT + rank  # workers on one host need different ports
    following = (rank + 1) % size
    with socket.create_server((addresses[rank], port)) as server:
        _barrier(driver)
        return [
            statistics.median(
                _send_message(driver, server, (addresses[following], _PORT + following), num_bytes)
                for _ in range(1 if num_bytes == max(argument["sizes"]) else _REPETITIONS)
            )
            for num_bytes in argument["sizes"]
        ]


def _send_message(driver: Driver, server: socket.socket, to: tuple[str, int], num_bytes: int) -> float:
    with socket.create_connection(to) as outgoing, server.accept()[0] as incoming:
        rates: list[float] = []
        receiver = threading.Thread(target=lambda: rates.append(receive_rate(incoming, num_bytes)))
        receiver.start()
        _barrier(driver)
        outgoing.sendall(bytes(num_bytes))
        receiver.join()
    _barrier(driver)
    return rates[0]


def receive_rate(incoming: socket.socket, num_bytes: int) -> float:
    """Bits per second, without the first chunk: its arrival starts the clock."""
    first = received = len(incoming.recv(1 << 20))
    started = time.perf_counter()
    while received < num_bytes and (piece := incoming.recv(1 << 20)):
        received += len(piece)
    return 8 * (received - first) / max(1e-6, time.perf_counter() - started)


def _barrier(driver: Driver) -> None:
    def program() -> Program[None]:
        yield AllReduce(torch.zeros(1))

    driver.run(program())
