"""Varints (LEB128): lengths and counts in seven bits per byte."""

from __future__ import annotations

from ..core import DecodeError


def varint(value: int) -> bytes:
    """The varint of a number."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def varint_bytes(value: int) -> int:
    """The length of `varint(value)`."""
    return max(1, -(-value.bit_length() // 7))


def read_varint(data: bytes, at: int = 0) -> tuple[int, int]:
    """The number at `at` and where it ends; at most nine bytes, so below 2^63."""
    value = 0
    for shift, byte in enumerate(data[at : at + 9]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    raise DecodeError("a varint is longer than nine bytes or runs past the end of the message")
