"""Recommend a composition for moments from measured costs: by hosts, link rate and tolerated error."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ..core import CompositionError, parse_rate

_ALL_REDUCED = ("dense", "sketch", "union")  # all others are gathered

Row = Mapping[str, Any]


@dataclass(frozen=True)
class CostEstimate:
    """Estimated cost of one round with a composition, for given hosts and link."""

    composition: str
    method: str
    error: float  # relative L2 error of the update m / (√v + ε)
    sent_bytes: float  # by each host
    work_s: float  # encoding, decoding and averaging
    seconds: float  # work_s plus the bytes at the link's rate


@dataclass(frozen=True)
class Advice:
    """The recommended composition, the reason, and all estimates, fastest first. Prints as a table."""

    composition: str
    chosen: CostEstimate
    dense: CostEstimate
    considered: tuple[CostEstimate, ...]
    reason: str
    measured_by: str

    def __str__(self) -> str:
        rows = [f"{'composition':<42}{'error':>9}{'sent (MB)':>11}{'work (s)':>10}{'round (s)':>11}"]
        for one in self.considered:
            mark = "*" if one is self.chosen else " "
            figures = f"{one.error:>9.3g}{one.sent_bytes / 1e6:>11.3g}{one.work_s:>10.3g}{one.seconds:>11.3g}"
            rows.append(f"{mark} {one.composition:<40}{figures}")
        return "\n".join([self.reason, *rows, f"Figures: {self.measured_by}"])


def advise(
    *,
    hosts: int,
    link: str | float,
    tolerated_error: float,
    parameters: float = 1e6,
    table: Mapping[str, Any] | None = None,
) -> Advice:
    """Recommend the fastest composition for moments within a tolerated update error.

    Args:
        hosts: Number of hosts that average; 1: one host sends its moments to another.
        link: Rate of the link: a text such as `"100mbit"`, or bits per second.
        tolerated_error: Largest relative L2 error of the update m / (√v + ε).
        parameters: Number of parameters, each with m and v in float32. It scales the seconds, not the recommendation.
        table: Measured figures, as `tools/moments_table.py` makes them from a run of `optimizer-moments`; None: those
            that are shipped.

    Returns:
        The recommendation; its `composition` is a text for `average`, `send` and `receive`.

    Raises:
        CompositionError: An argument is not valid.

    Example:
        ```python
        print(thinwire.moments.advise(hosts=4, link="100mbit", tolerated_error=0.1))
        ```
    """
    rate = parse_link(link)
    if not (isinstance(hosts, int) and hosts >= 1):
        raise CompositionError(f"advise: hosts must be a whole number, at least 1, got {hosts!r}")
    if not (tolerated_error >= 0 and parameters > 0):
        got = f"tolerated_error={tolerated_error}, parameters={parameters}"
        raise CompositionError(f"advise: tolerated_error must be at least 0 and parameters above 0, got {got}")
    table = load_table() if table is None else table
    dense = _estimate("dense()", "dense", 0.0, 1.0, 0.0, hosts, rate, parameters)
    estimates = [_estimate_group(rows, hosts, rate, parameters) for rows in _group_rows(table["rows"]).values()]
    considered = tuple(sorted([dense, *estimates], key=lambda estimate: estimate.seconds))
    chosen = next(estimate for estimate in considered if estimate.error <= tolerated_error)
    reason = _reason(chosen, dense, considered, link, hosts, tolerated_error)
    return Advice(chosen.composition, chosen, dense, considered, reason, f"{table['command']}, {table['machine']}")


def parse_link(link: str | float) -> float:
    """Return bits per second."""
    bits = parse_rate("".join(link.lower().removesuffix("/s").split())) if isinstance(link, str) else float(link)
    if bits is None or not 0 < bits < math.inf:
        raise CompositionError(
            f'advise: link must be a rate such as "100mbit" or "1gbit", or bits per second, got {link!r}'
        )
    return bits


@cache
def load_table() -> Mapping[str, Any]:
    """Return the shipped figures; tools/moments_table.py makes them from a run of optimizer-moments."""
    return json.loads(files(__package__).joinpath("measured.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _group_rows(rows: Sequence[Row]) -> dict[tuple[str, float], list[Row]]:
    """Group rows by method and requested saving, over tasks and hosts; only those with one text for all layers."""
    groups: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        if row["general"]:
            groups.setdefault((row["way"], row["asked"]), []).append(row)
    return groups


def _estimate_group(rows: Sequence[Row], hosts: int, rate: float, parameters: float) -> CostEstimate:
    """Combine the tasks of a group and interpolate between measured numbers of hosts, over their logarithm.

    Of two tasks the larger error and bytes count, and the shorter time: fixed costs weigh least in the larger model.
    """

    def figure(key: str, combine: Callable[[Sequence[float]], float]) -> float:
        found: dict[int, list[float]] = {}
        for row in rows:  # None: was not finite
            found.setdefault(row["hosts"], []).append(math.inf if row[key] is None else row[key])
        return interpolate({count: combine(values) for count, values in found.items()}, hosts)

    work = figure("encode_ns", min) + figure("aggregate_ns", min)
    return _estimate(
        rows[0]["text"], rows[0]["way"], figure("error", max), figure("payload", max), work, hosts, rate, parameters
    )


def interpolate(points: Mapping[int, float], at: int) -> float:
    """Interpolate linearly over the logarithm between the nearest points; constant beyond the last."""
    known = sorted(points)
    below = max((n for n in known if n <= at), default=known[0])
    above = min((n for n in known if n >= at), default=known[-1])
    if below >= above:
        return points[below if at >= below else above]
    fraction = math.log(at / below) / math.log(above / below)
    return points[below] + fraction * (points[above] - points[below])


def _estimate(
    text: str, method: str, error: float, payload: float, work_ns: float, hosts: int, rate: float, parameters: float
) -> CostEstimate:
    """Make an estimate; payload and work_ns are per dense byte."""
    dense = 8 * parameters
    all_reduced = text.removeprefix("moments(").startswith(_ALL_REDUCED)
    messages = 1.0 if hosts == 1 else 2 * (hosts - 1) / hosts if all_reduced else hosts - 1.0
    sent, work = dense * payload * messages, 1e-9 * dense * work_ns
    return CostEstimate(text, method, error, sent, work, work + 8 * sent / rate)


def _reason(
    chosen: CostEstimate,
    dense: CostEstimate,
    considered: Sequence[CostEstimate],
    link: str | float,
    hosts: int,
    tolerated: float,
) -> str:
    where = f"{hosts} hosts, {link}" if hosts > 1 else f"to one host, {link}"
    if chosen is dense:
        faster = [one for one in considered if one.seconds < dense.seconds]
        why = "no composition is faster: encoding and decoding take longer than the link saves"
        if faster:
            least = min(one.error for one in faster)
            why = f"faster compositions have an update error above {tolerated:g}, the best of them {least:.3g}"
        return f"dense() ({where}): {why}."
    gain = dense.seconds / chosen.seconds
    return (
        f"{chosen.composition} ({where}): a round in {chosen.seconds:.3g} s instead of {dense.seconds:.3g}, {gain:.1f} "
        f"times as fast; update error {chosen.error:.3g}, tolerated {tolerated:g}."
    )
