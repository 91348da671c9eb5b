"""Ticks, ranges and the writing of numbers for charts: mathematics without any drawing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thinwire.core import BYTES, format_bytes


@dataclass(frozen=True)
class Axis:
    """What stands beside an axis, how its ticks are written ("bytes", "number", ...), whether it is logarithmic."""

    title: str
    unit: str
    log: bool

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"Axis: no unit {self.unit!r}; there are {', '.join(UNITS)}")

    @property
    def heading(self) -> str:
        return self.title + (" (log scale)" if self.log else "")

    def write(self, value: float) -> str:
        return UNITS[self.unit](value)


def format_number(value: float | None, digits: int = 4, pad: bool = False) -> str:
    """Write with so many significant digits (`pad` keeps zeros at the end), small as 2·10⁻⁵, not finite as a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    mantissa, _, exponent = f"{value:{'#' if pad else ''}.{digits}g}".partition("e")
    if not exponent:
        return mantissa
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if mantissa == "1" else f"{mantissa}·{power}"


def format_seconds(value: float | None) -> str:
    """Write with three significant digits in µs, ms or s; from a thousand seconds on, whole seconds."""
    if value is None or not math.isfinite(value):
        return "–"
    factor, suffix = factor_of("seconds", value)
    rounded = float(f"{value / factor:.3g}")
    return (f"{rounded:,.0f}" if 1000 <= rounded < 1e6 else format_number(rounded, 3)) + suffix


def factor_of(unit: str, value: float) -> tuple[float, str]:
    """Return by what a value of this size is divided before it is written, and what stands behind it."""
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


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most `most` numbers in [low, high], 1, 2 or 5 times a power of ten apart; one value is its own tick."""
    if high <= low:
        return [low]
    power = math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10, 20):
        step = factor * 10.0**power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [float(f"{index * step:.12g}") for index in range(first, last + 1)]
    return [low, high]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most `most` ticks in [low, high], 0 < low: 1-2-5 or decades; evenly spaced numbers if these are few."""
    if not 0 < low <= high:
        raise ValueError(f"log_ticks: needs 0 < low <= high, got low={low}, high={high}")
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    fine = [tick for tick in fine if low <= tick <= high]
    if len(fine) < 3:  # less than about a decade
        return linear_ticks(low, high, most)
    if len(fine) <= most:
        return fine
    whole = [decade for decade in decades if low <= float(f"1e{decade}") <= high]
    stride = math.ceil(len(whole) / most)
    return [float(f"1e{decade}") for decade in whole if decade % stride == 0]


def padded_range(values: Sequence[float], log: bool) -> tuple[float, float]:
    """Return a range a little wider than the values, never empty; positive if `log` (then the values must be)."""
    low, high = min(values), max(values)
    if log:
        # Below a factor of 1.05 the ticks would need more digits than there is room for.
        margin = (high / low) ** 0.04 if high > 1.05 * low else 1.25
        return low / margin, high * margin
    margin = 0.04 * (high - low) if high > low else 0.1 * (abs(high) or 1.0)
    return low - margin, high + margin


def place(value: float, low: float, high: float, log: bool) -> float:
    """Return where the value lies between low (0) and high (1)."""
    return math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)


def finite(value: object) -> float | None:
    """Return the value as a float, or None if it is no finite number."""
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def short(value: float | None) -> float | int | None:
    """Return the value as JSON is to carry it: whole numbers whole, others with eight digits."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 2**53 else float(f"{value:.8g}")


def drawable(value: float | None, log: bool) -> bool:
    """Tell whether a value has a place on the axis; on a log axis 0 has none."""
    return value is not None and math.isfinite(value) and (value > 0 or not log)
