"""Axes of charts: ticks, ranges and the formatting of numbers; no drawing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thinwire.core import BYTES, format_bytes


@dataclass(frozen=True)
class Axis:
    """Title of an axis, unit of its ticks ("bytes", "number", "percent", "seconds"), and whether it is logarithmic."""

    title: str
    unit: str
    log: bool

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"Axis: no unit {self.unit!r}; there are {', '.join(UNITS)}")

    @property
    def heading(self) -> str:
        """The title, followed by "(log scale)" on a logarithmic axis."""
        return self.title + (" (log scale)" if self.log else "")

    def write(self, value: float) -> str:
        """Format a value in the axis's unit."""
        return UNITS[self.unit](value)


def format_number(value: float | None, digits: int = 4, pad: bool = False) -> str:
    """Format with `digits` significant digits (`pad` keeps final zeros), small as 2·10⁻⁵, not finite as a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    mantissa, _, exponent = f"{value:{'#' if pad else ''}.{digits}g}".partition("e")
    if not exponent:
        return mantissa
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if mantissa == "1" else f"{mantissa}·{power}"


def format_seconds(value: float | None) -> str:
    """Format with three significant digits in µs, ms or s; from 1000 s on, whole seconds."""
    if value is None or not math.isfinite(value):
        return "–"
    factor, suffix = choose_unit("seconds", value)
    rounded = float(f"{value / factor:.3g}")
    return (f"{rounded:,.0f}" if 1000 <= rounded < 1e6 else format_number(rounded, 3)) + suffix


def choose_unit(unit: str, value: float) -> tuple[float, str]:
    """Return the divisor and the suffix with which a value of this size is written."""
    if unit == "percent":
        return 0.01, " %"
    if unit == "bytes":
        name = format_bytes(value).rpartition(" ")[2]
        return 1000.0 ** BYTES.index(name), f" {name}"
    if unit == "seconds":
        rounded = abs(float(f"{value:.3g}"))
        return (1.0, " s") if rounded >= 1 or not rounded else (1e-3, " ms") if rounded >= 1e-3 else (1e-6, " µs")
    return 1.0, ""


UNITS: dict[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "number": lambda value: format_number(value, 6),
    "percent": lambda value: format_number(100 * value, 6) + " %",
    "seconds": format_seconds,
}


def linear_ticks(low: float, high: float, max_ticks: int = 6) -> list[float]:
    """Return at most `max_ticks` numbers in [low, high], 1, 2 or 5 times a power of ten apart."""
    if high <= low:
        return [low]
    power = math.floor(math.log10((high - low) / max_ticks))
    for factor in (1, 2, 5, 10, 20):
        step = factor * 10.0**power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < max_ticks:
            return [float(f"{index * step:.12g}") for index in range(first, last + 1)]
    return [low, high]


def log_ticks(low: float, high: float, max_ticks: int = 6) -> list[float]:
    """Return at most `max_ticks` ticks in [low, high], 0 < low: 1-2-5, decades, or evenly spaced on a short range."""
    if not 0 < low <= high:
        raise ValueError(f"log_ticks: needs 0 < low <= high, got low={low}, high={high}")
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    fine = [tick for tick in fine if low <= tick <= high]
    if len(fine) < 3:  # less than about a decade
        return linear_ticks(low, high, max_ticks)
    if len(fine) <= max_ticks:
        return fine
    whole = [decade for decade in decades if low <= float(f"1e{decade}") <= high]
    stride = math.ceil(len(whole) / max_ticks)
    return [float(f"1e{decade}") for decade in whole if decade % stride == 0]


def pad_range(values: Sequence[float], log: bool) -> tuple[float, float]:
    """Return a range slightly wider than the values, never empty; with `log` values must be positive."""
    low, high = min(values), max(values)
    if log:
        # Below a factor of 1.05 the ticks would need more digits than fit.
        margin = (high / low) ** 0.04 if high > 1.05 * low else 1.25
        return low / margin, high * margin
    margin = 0.04 * (high - low) if high > low else 0.1 * (abs(high) or 1.0)
    return low - margin, high + margin


def to_fraction(value: float, low: float, high: float, log: bool) -> float:
    """Return the position of the value between low (0) and high (1)."""
    return math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)


def to_finite(value: object) -> float | None:
    """Return the value as a float, or None if it is not a finite number."""
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def to_json_number(value: float | None) -> float | int | None:
    """Return the value for JSON: whole numbers as int, others with eight digits, not finite as None."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 2**53 else float(f"{value:.8g}")


def is_drawable(value: float | None, log: bool) -> bool:
    """Return whether a value can be drawn on the axis; 0 cannot on a log axis."""
    return value is not None and math.isfinite(value) and (value > 0 or not log)
