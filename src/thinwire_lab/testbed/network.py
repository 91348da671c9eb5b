"""A network of our own on this machine: one namespace a worker, all joined by a switch, each link with a rate.

It needs root and iproute2. Two networks stand side by side without knowing of each other: names are unique and
addresses are seen inside alone.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from thinwire.core import parse_rate
from thinwire.drivers.processes import loopback_device

from .guardian import Guardian, leftovers, new_mark, remove

DEVICE = "eth0"  # of each worker
UNSHAPED = "none"
ONE_HOST = "lo"  # all workers in one namespace, over its loopback
MOST_WORKERS = 250
_PORT = 29500  # nobody else is there


class Place(NamedTuple):
    """Where one worker runs; without a namespace, on this machine's own loopback."""

    namespace: str
    device: str
    address: str

    def inside(self, *command: str) -> list[str]:
        """The command that runs `command` there."""
        return ["ip", "netns", "exec", self.namespace, *command] if self.namespace else list(command)


@dataclass(frozen=True)
class Network:
    """Standing as long as its `with` block; places in rank order."""

    rate: str
    places: tuple[Place, ...]
    port: int
    guardian: Guardian

    @property
    def shaped(self) -> bool:
        return self.rate not in (UNSHAPED, ONE_HOST)

    @property
    def counted(self) -> bool:
        """Whether nobody else's bytes pass through its devices."""
        return bool(self.places[0].namespace)

    def starts(self) -> list[list[str]]:
        """How the commands of ranks begin, so that each runs in its place and gloo uses that place's device."""
        return [place.inside("env", f"GLOO_SOCKET_IFNAME={place.device}") for place in self.places]


def rate_bits(rate: str) -> float | None:
    """Bits a second of a rate as `tc` writes it; None for "none" and "lo", which are not shaped."""
    if rate in (UNSHAPED, ONE_HOST):
        return None
    bits = parse_rate(rate)
    if bits is None or bits < 1e4:  # below, one frame takes more than a second
        raise ValueError(f"rate must be like 100mbit, 1gbit or 500kbit (at least 10kbit), none or lo; got {rate!r}")
    return bits


def burst_bytes(bits_per_s: float) -> int:
    """How much may pass at once. Less throttles below the rate, more lets short messages pass as if nothing shaped.

    Up to 200 Mbit/s 0.5 ms of the rate, and two frames at least; then whole segments of 64 KiB, which would else be cut
    into frames at a cost in time: one up to 500 Mbit/s, two above, and 1 ms of the rate at least.
    """
    bytes_per_ms = bits_per_s / 8e3
    if bits_per_s <= 2e8:
        return int(max(3100, bytes_per_ms / 2))
    return 70_000 if bits_per_s <= 5e8 else int(max(131_072, bytes_per_ms))


@contextmanager
def network(workers: int, rate: str = UNSHAPED) -> Iterator[Network]:
    """Build it; it is gone afterwards, also if this process is killed. What killed ones left behind goes first."""
    rate_bits(rate)
    _check_workers(workers)
    check_root()
    for mark in leftovers():
        remove(mark)
    mark = new_mark()
    with Guardian(mark) as guardian:
        places = _one_host(mark, workers) if rate == ONE_HOST else _hosts(mark, workers, rate)
        yield Network(rate, places, _PORT, guardian)


@contextmanager
def loopback(workers: int) -> Iterator[Network]:
    """No network of our own: plain processes on this machine, not shaped and not counted. Needs no root."""
    _check_workers(workers)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Guardian(new_mark()) as guardian:
        yield Network(UNSHAPED, (Place("", loopback_device(), "127.0.0.1"),) * workers, port, guardian)


def may_build() -> bool:
    """Whether this process may make networks of its own."""
    try:
        check_root()
    except PermissionError:
        return False
    return shutil.which("ip") is not None and shutil.which("tc") is not None


def check_root() -> None:
    if os.geteuid() != 0:
        raise PermissionError("building network namespaces needs root")
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise FileNotFoundError(f"building network namespaces needs `{program}` (iproute2)")


def why_not() -> str:
    """What stands against networks of our own here; empty if nothing does."""
    try:
        with network(1):
            return ""
    except PermissionError as error:
        return str(error)
    except OSError as error:
        return f"this machine lets nobody build network namespaces: {error}"


def _check_workers(workers: int) -> None:
    if not 1 <= workers <= MOST_WORKERS:
        raise ValueError(f"workers must be 1 to {MOST_WORKERS}, got {workers}")


def _one_host(mark: str, workers: int) -> tuple[Place, ...]:
    name = f"{mark}-all"
    _add(name)
    return (Place(name, "lo", "127.0.0.1"),) * workers


def _hosts(mark: str, workers: int, rate: str) -> tuple[Place, ...]:
    switch = f"{mark}-switch"
    _add(switch)
    _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
    _up(switch, "bridge")
    places = []
    for rank in range(workers):
        place, port = Place(f"{mark}-{rank}", DEVICE, f"10.77.0.{rank + 1}"), f"port{rank}"
        _add(place.namespace)
        _run("ip", "link", "add", DEVICE, "netns", place.namespace, "type", "veth", "peer", port, "netns", switch)
        _run("ip", "-n", place.namespace, "address", "add", f"{place.address}/24", "dev", DEVICE)
        _run("ip", "-n", switch, "link", "set", port, "master", "bridge")
        for namespace, device in ((place.namespace, DEVICE), (switch, port)):  # out of the worker, and into it
            _shape(namespace, device, rate)
            _up(namespace, device)
        places.append(place)
    return tuple(places)


def _add(namespace: str) -> None:
    _run("ip", "netns", "add", namespace)
    _run("ip", "-n", namespace, "link", "set", "lo", "up")


def _up(namespace: str, device: str) -> None:
    """Without IPv6, whose greetings would be counted."""
    _run("ip", "-n", namespace, "link", "set", device, "addrgenmode", "none", "up")


def _shape(namespace: str, device: str, rate: str) -> None:
    bits = rate_bits(rate)
    if bits is not None:
        shape = ["rate", rate, "burst", str(burst_bytes(bits)), "latency", "50ms"]
        _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *shape)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
