"""Is a rate obeyed? All workers send to the next in a ring, at once; receivers hold the clock.

A long transfer tells whether the rate is reached; short messages, which are what a compressed gradient is, tell whether
they are held back at all.
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

# how long a message lasts at the rate, and the shares of the rate at which it may arrive: frames take 5 %, the burst
# gives a little to short ones, and a busy machine takes some away again
MESSAGES = {"long": (1.0, 0.75, 1.02), "50 ms": (0.05, 0.6, 1.2), "5 ms": (0.005, 0.0, 2.0)}
_LEAST_BYTES = 30_000  # twenty frames: less tells nothing
_UNSHAPED_BITS = 2e9  # how long messages are where there is no rate
_REPETITIONS = 5
_PORT = 7000


@dataclass(frozen=True)
class Goodput:
    """Of one kind of message: the slowest and the fastest worker's median."""

    message: str
    num_bytes: int
    slowest_bits_per_s: float
    fastest_bits_per_s: float
    obeyed: bool | None  # None where there is no rate


def check(net: Network) -> list[Goodput]:
    """One row per kind of message."""
    bits = rate_bits(net.rate)
    sizes = [int(max(_LEAST_BYTES, (bits or _UNSHAPED_BITS) / 8 * seconds)) for seconds, _, _ in MESSAGES.values()]
    argument = {"addresses": [place.address for place in net.places], "sizes": sizes}
    measured = run_ranks(
        len(net.places), "thinwire_lab.testbed.goodput:send_round", argument, command_prefixes=net.starts()
    )
    return [
        judge(name, size, bits, of) for name, size, of in zip(MESSAGES, sizes, zip(*measured, strict=True), strict=True)
    ]


def judge(message: str, num_bytes: int, rate: float | None, bits_per_s: Sequence[float]) -> Goodput:
    _, least, most = MESSAGES[message]
    slowest, fastest = min(bits_per_s), max(bits_per_s)
    obeyed = None if rate is None else least * rate <= slowest and fastest <= most * rate
    return Goodput(message, num_bytes, slowest, fastest, obeyed)


def send_round(driver: Driver, argument: dict[str, Any], tell: object) -> list[float]:
    """One rank's part: bits a second that it received, the median for each size of message."""
    rank, size = driver.world
    addresses, port = argument["addresses"], _PORT + rank  # workers on one host need a port each
    following = (rank + 1) % size
    with socket.create_server((addresses[rank], port)) as server:
        _together(driver)
        return [
            statistics.median(
                _message(driver, server, (addresses[following], _PORT + following), num_bytes)
                for _ in range(1 if num_bytes == max(argument["sizes"]) else _REPETITIONS)
            )
            for num_bytes in argument["sizes"]
        ]


def _message(driver: Driver, server: socket.socket, to: tuple[str, int], num_bytes: int) -> float:
    with socket.create_connection(to) as outgoing, server.accept()[0] as incoming:
        rates: list[float] = []
        receiver = threading.Thread(target=lambda: rates.append(received_rate(incoming, num_bytes)))
        receiver.start()
        _together(driver)
        outgoing.sendall(bytes(num_bytes))
        receiver.join()
    _together(driver)
    return rates[0]


def received_rate(incoming: socket.socket, num_bytes: int) -> float:
    """Bits a second; the first piece starts the clock, so it does not count."""
    first = received = len(incoming.recv(1 << 20))
    started = time.perf_counter()
    while received < num_bytes and (piece := incoming.recv(1 << 20)):
        received += len(piece)
    return 8 * (received - first) / max(1e-6, time.perf_counter() - started)


def _together(driver: Driver) -> None:
    def program() -> Program[None]:
        yield AllReduce(torch.zeros(1))

    driver.run(program())
