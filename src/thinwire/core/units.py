"""Quantities with units: bytes as people read them, and rates as people write them."""

from __future__ import annotations

import math
import re

BYTES = ("B", "kB", "MB", "GB", "TB", "PB")  # powers of 1000
_RATE = re.compile(r"(\d*\.?\d+)([kmg]?)bit")
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


def format_bytes(value: float | None) -> str:
    """Write with three significant digits in B, kB, MB, ...: "12.3 MB"; what is not finite as a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    rounded = float(f"{value:.3g}")  # first, because 999.9 B is 1 kB
    power = 0
    while abs(rounded) >= 1000 and power + 1 < len(BYTES):
        rounded, power = rounded / 1000, power + 1
    return f"{rounded:.3g} {BYTES[power]}"


def parse_rate(text: str) -> float | None:
    """Bits a second of a rate as `tc` writes it: "100mbit", "1.5gbit"; None for what is no rate."""
    match = _RATE.fullmatch(text)
    return float(match[1]) * _FACTORS[match[2]] if match else None
