"""Which way to send moments: a choice among measured ones, by hosts, link and the error that is tolerated."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ..core import CompositionError, parse_rate

_ADDED = ("dense", "sketch", "union")  # by all-reduce; all others are gathered

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Choice:
    """One way, as it would be for these hosts and this link: figures for one round."""

    composition: str
    way: str
    error: float  # of the update m / (√v + ε), relative
    sent_bytes: float  # by each host
    work_s: float  # encoding, decoding and averaging
    seconds: float  # that, and the bytes at the link's rate


@dataclass(frozen=True)
class Advice:
    """The choice, why, and all that were considered, the quickest first. Prints as a table."""

    composition: str
    chosen: Choice
    dense: Choice
    considered: tuple[Choice, ...]
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
    """The quickest measured way for moments of so many hosts whose update is off by no more than `tolerated_error`.

    hosts: how many average; 1: one host's moments move to another. link: a rate such as "100mbit", or bits a second.
    tolerated_error: relative L2 error of m / (√v + ε). parameters: how many, each with m and v in float32; it scales
    the seconds, not the choice. table: what `thinwire run e6` measured; without, the one that is shipped.
    """
    rate = link_bits(link)
    if not (isinstance(hosts, int) and hosts >= 1):
        raise CompositionError(f"advise: hosts must be a whole number from 1 on, got {hosts!r}")
    if not (tolerated_error >= 0 and parameters > 0):
        got = f"tolerated_error={tolerated_error}, parameters={parameters}"
        raise CompositionError(f"advise: an error from 0 on and parameters above 0 are needed, got {got}")
    table = measured() if table is None else table
    dense = _choice("dense()", "dense", 0.0, 1.0, 0.0, hosts, rate, parameters)
    ways = [_of_group(rows, hosts, rate, parameters) for rows in _grouped(table["rows"]).values()]
    considered = tuple(sorted([dense, *ways], key=lambda choice: choice.seconds))
    chosen = next(choice for choice in considered if choice.error <= tolerated_error)
    reason = _reason(chosen, dense, considered, link, hosts, tolerated_error)
    return Advice(chosen.composition, chosen, dense, considered, reason, f"{table['command']}, {table['machine']}")


def link_bits(link: str | float) -> float:
    """Bits a second."""
    bits = parse_rate("".join(link.lower().removesuffix("/s").split())) if isinstance(link, str) else float(link)
    if bits is None or not 0 < bits < math.inf:
        raise CompositionError(
            f'advise: link must be a rate such as "100mbit" or "1gbit", or bits a second, got {link!r}'
        )
    return bits


@cache
def measured() -> Mapping[str, Any]:
    """The figures that are shipped: tools/moments_table.py makes them of a run of E6."""
    return json.loads(files(__package__).joinpath("measured.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _grouped(rows: Sequence[Row]) -> dict[tuple[str, float], list[Row]]:
    """Cases of one way and wished saving, of all tasks and numbers of hosts. Only what one text says for all layers."""
    groups: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        if row["general"]:
            groups.setdefault((row["way"], row["asked"]), []).append(row)
    return groups


def _of_group(rows: Sequence[Row], hosts: int, rate: float, parameters: float) -> Choice:
    """Of two tasks the larger error and bytes, and the shorter time, since fixed costs weigh least in the larger model;
    between measured hosts along their logarithm."""

    def figure(key: str, combine: Callable[[Sequence[float]], float]) -> float:
        found: dict[int, list[float]] = {}
        for row in rows:  # what is not there was not finite
            found.setdefault(row["hosts"], []).append(math.inf if row[key] is None else row[key])
        return between({count: combine(values) for count, values in found.items()}, hosts)

    work = figure("encode_ns", min) + figure("aggregate_ns", min)
    return _choice(
        rows[0]["text"], rows[0]["way"], figure("error", max), figure("payload", max), work, hosts, rate, parameters
    )


def between(points: Mapping[int, float], at: int) -> float:
    """A line over the logarithm between the nearest points; beyond them the last."""
    known = sorted(points)
    below = max((n for n in known if n <= at), default=known[0])
    above = min((n for n in known if n >= at), default=known[-1])
    if below >= above:
        return points[below if at >= below else above]
    share = math.log(at / below) / math.log(above / below)
    return points[below] + share * (points[above] - points[below])


def _choice(
    text: str, way: str, error: float, payload: float, work_ns: float, hosts: int, rate: float, parameters: float
) -> Choice:
    """payload and work are given for a dense byte."""
    dense = 8 * parameters
    added = text.removeprefix("moments(").startswith(_ADDED)
    messages = 1.0 if hosts == 1 else 2 * (hosts - 1) / hosts if added else hosts - 1.0
    sent, work = dense * payload * messages, 1e-9 * dense * work_ns
    return Choice(text, way, error, sent, work, work + 8 * sent / rate)


def _reason(
    chosen: Choice, dense: Choice, considered: Sequence[Choice], link: str | float, hosts: int, tolerated: float
) -> str:
    where = f"{hosts} hosts, {link}" if hosts > 1 else f"to one host, {link}"
    if chosen is dense:
        quicker = [one for one in considered if one.seconds < dense.seconds]
        why = "no way is quicker: what it would save on the link it needs for encoding and decoding"
        if quicker:
            least = min(one.error for one in quicker)
            why = f"what is quicker loses more than {tolerated:g} of the update, the best of them {least:.3g}"
        return f"dense() ({where}): {why}."
    gain = dense.seconds / chosen.seconds
    return (
        f"{chosen.composition} ({where}): a round in {chosen.seconds:.3g} s instead of {dense.seconds:.3g}, {gain:.1f} "
        f"times as fast; its update is off by {chosen.error:.3g}, of {tolerated:g} tolerated."
    )
