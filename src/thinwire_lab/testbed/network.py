"""A network on this machine: one namespace per worker, connected by a bridge, each link shaped to a rate.

It needs root and iproute2. Several networks can exist at the same time: names are unique and addresses are visible only
inside of their namespaces.
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

from .cleanup import CleanupProcess, find_stale_prefixes, new_prefix, remove_namespaces

DEVICE = "eth0"  # of each worker
UNSHAPED = "none"
ONE_HOST = "lo"  # all workers in one namespace, over its loopback
MAX_WORKERS = 250
_PORT = 29500  # free in a new namespace


class Host(NamedTuple):
    """Where one worker runs: a namespace with one device, or this machine's loopback if namespace is empty."""

    namespace: str
    device: str
    address: str

    def wrap_command(self, *command: str) -> list[str]:
        """The command that runs `command` in the namespace."""
        return ["ip", "netns", "exec", self.namespace, *command] if self.namespace else list(command)


@dataclass(frozen=True)
class Network:
    """Exists as long as its `with` block. hosts: in rank order."""

    rate: str
    hosts: tuple[Host, ...]
    port: int
    cleanup: CleanupProcess

    @property
    def is_shaped(self) -> bool:
        return self.rate not in (UNSHAPED, ONE_HOST)

    @property
    def is_counted(self) -> bool:
        """Whether the devices carry only the traffic of the workers, so that their counters can be used."""
        return bool(self.hosts[0].namespace)

    def command_prefixes(self) -> list[list[str]]:
        """For each rank the words before its command that run it on its host and set gloo's device."""
        return [host.wrap_command("env", f"GLOO_SOCKET_IFNAME={host.device}") for host in self.hosts]


def rate_bits(rate: str) -> float | None:
    """Bits a second of a rate as `tc` writes it; None for "none" and "lo", which are not shaped."""
    if rate in (UNSHAPED, ONE_HOST):
        return None
    bits = parse_rate(rate)
    if bits is None or bits < 1e4:  # below, one frame takes more than a second
        raise ValueError(
            f"must be a rate such as 100mbit, 1gbit or 500kbit (at least 10kbit), or none or lo, got {rate!r}"
        )
    return bits


def burst_bytes(bits_per_s: float) -> int:
    """Burst of the token bucket. A smaller one throttles below the rate, a larger one does not shape short messages.

    Up to 200 Mbit/s: 0.5 ms of the rate, at least two frames. Above: whole segments of 64 KiB, because to cut them into
    frames takes time: one up to 500 Mbit/s, then two, at least 1 ms of the rate.
    """
    bytes_per_ms = bits_per_s / 8e3
    if bits_per_s <= 2e8:
        return int(max(3100, bytes_per_ms / 2))
    return 70_000 if bits_per_s <= 5e8 else int(max(131_072, bytes_per_ms))


@contextmanager
def network(workers: int, rate: str = UNSHAPED) -> Iterator[Network]:
    """Build a network; it is removed afterwards, even if this process is killed. Removes stale networks first."""
    rate_bits(rate)
    _check_workers(workers)
    check_requirements()
    for prefix in find_stale_prefixes():
        remove_namespaces(prefix)
    prefix = new_prefix()
    with CleanupProcess(prefix) as cleanup:
        hosts = _build_one_host(prefix, workers) if rate == ONE_HOST else _build_hosts(prefix, workers, rate)
        yield Network(rate, hosts, _PORT, cleanup)


@contextmanager
def loopback_network(workers: int) -> Iterator[Network]:
    """Plain processes over this machine's loopback, without shaping and without byte counts. Needs no root."""
    _check_workers(workers)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with CleanupProcess(new_prefix()) as cleanup:
        yield Network(UNSHAPED, (Host("", loopback_device(), "127.0.0.1"),) * workers, port, cleanup)


def can_build_network() -> bool:
    """Whether this process can build networks."""
    try:
        check_requirements()
    except PermissionError:
        return False
    return shutil.which("ip") is not None and shutil.which("tc") is not None


def check_requirements() -> None:
    """Raise PermissionError or FileNotFoundError if networks cannot be built."""
    if os.geteuid() != 0:
        raise PermissionError("building network namespaces needs root")
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise FileNotFoundError(f"building network namespaces needs `{program}` (iproute2)")


def explain_unavailable() -> str:
    """Why networks cannot be built here; empty if they can."""
    try:
        with network(1):
            return ""
    except PermissionError as error:
        return str(error)
    except OSError as error:
        return f"this machine does not allow network namespaces: {error}"


def _check_workers(workers: int) -> None:
    if not 1 <= workers <= MAX_WORKERS:
        raise ValueError(f"workers must be 1 to {MAX_WORKERS}, got {workers}")


def _build_one_host(prefix: str, workers: int) -> tuple[Host, ...]:
    name = f"{prefix}-all"
    _add(name)
    return (Host(name, "lo", "127.0.0.1"),) * workers


def _build_hosts(prefix: str, workers: int, rate: str) -> tuple[Host, ...]:
    switch = f"{prefix}-switch"
    _add(switch)
    _run_command("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
    _set_up(switch, "bridge")
    hosts = []
    for rank in range(workers):
        host, port = Host(f"{prefix}-{rank}", DEVICE, f"10.77.0.{rank + 1}"), f"port{rank}"
        _add(host.namespace)
        _run_command(
            "ip", "link", "add", DEVICE, "netns", host.namespace, "type", "veth", "peer", port, "netns", switch
        )
        _run_command("ip", "-n", host.namespace, "address", "add", f"{host.address}/24", "dev", DEVICE)
        _run_command("ip", "-n", switch, "link", "set", port, "master", "bridge")
        for namespace, device in ((host.namespace, DEVICE), (switch, port)):  # out of the worker, and into it
            _shape(namespace, device, rate)
            _set_up(namespace, device)
        hosts.append(host)
    return tuple(hosts)


def _add(namespace: str) -> None:
    _run_command("ip", "netns", "add", namespace)
    _run_command("ip", "-n", namespace, "link", "set", "lo", "up")


def _set_up(namespace: str, device: str) -> None:
    """Set a device up without IPv6: packets of its neighbor discovery would be counted."""
    _run_command("ip", "-n", namespace, "link", "set", device, "addrgenmode", "none", "up")


def _shape(namespace: str, device: str, rate: str) -> None:
    bits = rate_bits(rate)
    if bits is not None:
        shape = ["rate", rate, "burst", str(burst_bytes(bits)), "latency", "50ms"]
        _run_command("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *shape)


def _run_command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
