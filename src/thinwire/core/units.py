"""Quantities with units: formatting of bytes, parsing of rates."""

from __future__ import annotations

import math
import re

BYTES = ("B", "kB", "MB", "GB", "TB", "PB")  # powers of 1000
_RATE = re.compile(r"(\d*\.?\d+)([kmg]?)bit")
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


def format_bytes(value: float | None) -> str:
    """Three significant digits in B, kB, MB, ...: "12.3 MB"; a dash for None and non-finite numbers."""
    if value is None or not math.isfinite(value):
        return "–"
    rounded = float(f"{value:.3g}")  # first, because 999.9 B is 1 kB
    power = 0
    while abs(rounded) >= 1000 and power + 1 < len(BYTES):
        rounded, power = rounded / 1000, power + 1
    return f"{rounded:.3g} {BYTES[power]}"


def parse_rate(text: str) -> float | None:
    """Bits per second of a rate as `tc` writes it ("100mbit", "1.5gbit"); None if it is not one."""
    match = _RATE.fullmatch(text)
    return float(match[1]) * _FACTORS[match[2]] if match else None
