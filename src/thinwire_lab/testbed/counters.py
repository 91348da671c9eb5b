"""Byte and packet counters of a network interface, as the Linux kernel keeps them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

FRAME_BYTES = 66  # Ethernet 14, IP 20, TCP 32 with its time stamps; a segment of up to 64 KB counts as one packet


class Counts(NamedTuple):
    """Counters of one device."""

    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int

    def since(self, before: Counts) -> Counts:
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))

    def without_frames(self) -> tuple[int, int]:
        """Bytes sent and received without frame headers; valid for links that are not shaped, see FRAME_BYTES."""
        sent = self.sent_bytes - FRAME_BYTES * self.sent_packets
        return sent, self.received_bytes - FRAME_BYTES * self.received_packets


def read_counts(device: str, namespace: str = "") -> Counts:
    """Counters of a device in a namespace, or in that of this process if namespace is empty."""
    return _counts_there(device, namespace) if namespace else _counts_here(device)


def _counts_here(device: str) -> Counts:
    """Fast enough to be read at every step."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == device:
            received_bytes, received_packets, *_, sent_bytes, sent_packets = map(int, figures.split()[:10])
            return Counts(sent_bytes, sent_packets, received_bytes, received_packets)
    raise OSError(f"there is no network device {device!r} here")


def _counts_there(device: str, namespace: str) -> Counts:
    words = ["ip", "-n", namespace, "-json", "-statistics", "link", "show", "dev", device]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
    stats = json.loads(done.stdout)[0]["stats64"]
    sent, received = stats["tx"], stats["rx"]
    return Counts(sent["bytes"], sent["packets"], received["bytes"], received["packets"])
