"""Peers of Listener and Connection in tests: handlers, secrets, raw sockets, frames of a handshake."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from helpers.faulty_link import whole_frame
from thinwire.core import Message, Payload
from thinwire.drivers.sockets import Listener, Secret
from thinwire.wire import decode_frame, encode_frame

SECRET, OTHER = Secret(b"0123456789abcdef" * 4), Secret(b"fedcba9876543210" * 4)  # 32 bytes: no time for scrypt
LOCAL = "127.0.0.1:0"
NONCES: dict[str, Any] = {"handshake": 3, "nonce": "0" * 32, "generation": "1" * 32}


class Echo:
    """Answers with what it got, and records senders and sequence numbers."""

    def __init__(self) -> None:
        self.received: list[tuple[str, int]] = []

    def __call__(self, message: Message) -> Message:
        self.received.append((message.sender, message.sequence))
        return Message("echo", round=message.round, fields=message.fields, payload=message.payload)


def ok(message: Message) -> Message:
    return Message("ok", payload=Payload((torch.full((64,), 7.0),)))


def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def raw(listener: Listener) -> socket.socket:
    host, _, port = listener.address.rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=5)
    made.settimeout(5)
    return made


def reasons(sock: socket.socket) -> list[object]:
    """What the listener sent before it closed the connection: reasons, or kinds of messages without one."""
    received: list[object] = []
    with contextlib.suppress(OSError):
        while data := whole_frame(sock):
            message = decode_frame(data[:-32] if data[5] else data, None)
            received.append(message.fields.get("reason", message.kind))
    return received


def hello(**fields: Any) -> bytes:
    return bytes(encode_frame(Message("~hello", "w", fields={**NONCES, **fields})))


def huge(body_bytes: int) -> bytes:
    form = struct.pack("<4sBBHQQQQ", b"thwf", 2, 0, 16, 0, 0, 0, body_bytes)
    return form + struct.pack("<I", zlib.crc32(form))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
