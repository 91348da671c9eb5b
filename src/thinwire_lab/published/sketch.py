"""When adding sparse tensors on the wire pays: bytes a worker sends, against workers, for three kinds of supports.

Every worker has a tensor of 65,536 float32 values with one in a hundred, or five, that are not zero: at the same places
on all workers, at places each drew on its own, or at places no two share. The real aggregators average them in
lockstep and the meter counts; formulas are those of `worth_it`. Headers are counted
apart. All ways but two hops give the same average; two hops keep no more of it than the density, and leave the rest
to error feedback.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from thinwire.catalog import parse
from thinwire.core import TensorSpec, World, derive_key
from thinwire.drivers.lockstep import lockstep
from thinwire.drivers.meter import HEADER, Meter
from thinwire.exchange import Exchanger
from thinwire.kernels import distinct_positions

from ..configuration.run_plan import Job, RunPlan
from .sketch_traffic import worth_it

_SUPPORT_KEY = "support"  # frozen: makes the random bits

NUMEL = 1 << 16
WORKERS = (2, 4, 8, 16, 32)
DENSITIES = (0.01, 0.05)
OVERLAPS: dict[str, float | str] = {"identical": 1.0, "independent": "independent", "disjoint": 0.0}
WAYS = {
    "sketch": "sketch(topk(k={k}))",
    "union": "union(topk(k={k}))",
    "gather": "gather(topk(k={k}))",
    "two_hop": "two_hop(topk(k={k}))",
    "dense": "dense()",
}
EXACT = ("sketch", "union", "gather")


Case: TypeAlias = tuple[float, str, int]  # density, supports, workers


class Metered(NamedTuple):
    """Means over the workers of one step."""

    num_bytes: float  # without headers
    header_bytes: float
    messages: int
    error: float  # largest |value - dense average|, as a share of the largest value


Found: TypeAlias = Mapping[Case, Mapping[str, Metered]]


def supports(overlap: str, count: int, numel: int, workers: int) -> list[Tensor]:
    """Each worker's positions: `count` of `numel`."""
    if overlap == "independent":
        return [
            distinct_positions(derive_key(_SUPPORT_KEY, r), count, numel, torch.device("cpu")) for r in range(workers)
        ]
    order = torch.randperm(numel, generator=torch.Generator().manual_seed(1))
    return [order[:count] if overlap == "identical" else order[r * count : (r + 1) * count] for r in range(workers)]


def measure(text: str, tensors: list[Tensor]) -> Metered:
    """One step of these workers."""
    spec, workers = TensorSpec.of("layer", tensors[0]), len(tensors)
    meters = [Meter() for _ in tensors]
    exchangers = [Exchanger([spec], parse(text), seed=1) for _ in tensors]
    pairs = enumerate(zip(exchangers, tensors, strict=True))
    outs = lockstep([e.run_step({"layer": t}, 0, World(r, workers)) for r, (e, t) in pairs], meters)
    mean = torch.stack(tensors).double().mean(0)
    sent = sum(meter.total().sent_bytes for meter in meters) / workers
    headers = sum(meter.sum_by("kind")[HEADER].sent_bytes for meter in meters) / workers
    error = float((outs[0]["layer"] - mean).abs().max() / mean.abs().max())
    return Metered(sent - headers, headers, meters[0].total().requests, error)


def cases() -> Iterator[Case]:
    """Density, kind of supports, workers; there are not always enough places for supports that share none."""
    for density in DENSITIES:
        for overlap in OVERLAPS:
            yield from ((density, overlap, w) for w in WORKERS if overlap != "disjoint" or w * density <= 1)


def meter_all(tell: Callable[[int, int], None]) -> dict[Case, dict[str, Metered]]:
    found: dict[Case, dict[str, Metered]] = {}
    total = len(list(cases()))
    for done, (density, overlap, workers) in enumerate(cases()):
        tell(done, total)
        count = math.ceil(density * NUMEL)
        generator = torch.Generator().manual_seed(workers)
        tensors = []
        for positions in supports(overlap, count, NUMEL, workers):
            values = torch.randn(count, generator=generator)
            tensors.append(torch.zeros(NUMEL).index_put_((positions,), values))
        found[density, overlap, workers] = {way: measure(t.format(k=count), tensors) for way, t in WAYS.items()}
    tell(total, total)
    return found


def formula(case: Case) -> dict[str, float]:
    density, overlap, workers = case
    return worth_it(density, workers, OVERLAPS[overlap], NUMEL).num_bytes


def tables(found: Found) -> list[dict[str, Any]]:
    """By formula and metered apart, so that nobody takes one for the other."""
    by_way = {way: [row[way] for row in found.values()] for way in WAYS}
    most = [
        [w, max(m.messages for m in all_), round(max(m.header_bytes for m in all_)), max(m.error for m in all_)]
        for w, all_ in by_way.items()
    ]
    return [
        _table(found, "Bytes a worker sends, by formula", "worth_it(density, workers, overlap), without headers.",
               lambda case, way: formula(case)[way]),
        _table(found, "Bytes a worker sends, metered", "One step in lockstep, without headers.",
               lambda case, way: found[case][way].num_bytes),
        {"title": "Messages, headers, errors: the most of all cases, metered",
         "note": "Headers: 16 bytes a message and peer, and lengths of parts. Errors: shares of the largest average.",
         "columns": ["way", "messages", "header bytes", "largest error"], "rows": most},
    ]  # fmt: skip


def _table(found: Found, title: str, note: str, figure: Callable[[Case, str], float]) -> dict[str, Any]:
    rows = [[f"{100 * case[0]:g} %", *case[1:], *(round(figure(case, way)) for way in WAYS)] for case in found]
    return {"title": title, "note": note, "columns": ["kept", "supports", "workers", *WAYS], "rows": rows}


def figures(found: Found) -> list[dict[str, Any]]:
    x = {"title": "workers (log scale)", "log": True, "unit": "number"}
    y = {"title": "bytes a worker sends (log scale)", "log": True, "unit": "bytes"}
    note = "Lines by formula, marks metered in lockstep."
    return [
        {
            "title": f"{100 * density:g} % kept, {overlap} supports",
            "note": note,
            "x": x,
            "y": y,
            "curves": _curves({c: row for c, row in found.items() if c[:2] == (density, overlap)}),
        }
        for density in DENSITIES
        for overlap in OVERLAPS
    ]


def _curves(row: Found) -> list[dict[str, Any]]:
    workers = [case[2] for case in row]
    lines, marks = [], []
    for style, way in enumerate(WAYS):
        expected, got = [formula(case)[way] for case in row], [ways[way].num_bytes for ways in row.values()]
        lines.append({"label": f"{way}, by formula", "x": workers, "y": expected, "style": style})
        marks.append({"label": f"{way}, metered", "x": workers, "y": got, "style": style, "points": True})
    return lines + marks


def checks(found: Found) -> list[dict[str, Any]]:
    pairs = [(found[case][way].num_bytes, formula(case)[way]) for case in found for way in WAYS]
    worst = max(abs(got / expected - 1) for got, expected in pairs)
    error = max(row[way].error for row in found.values() for way in EXACT)
    longer = [case for case, row in found.items() if row["union"].num_bytes > row["sketch"].num_bytes]
    wins = {case for case, row in found.items() if row["sketch"].num_bytes < row["gather"].num_bytes}
    same = {density: [w for d, o, w in sorted(wins) if (d, o) == (density, "identical")] for density in DENSITIES}
    apart = [case for case in wins if case[1] == "disjoint"]
    told = ", ".join(f"{100 * density:g} % kept: from {won[0]} workers on" for density, won in same.items() if won)
    return [
        _check("what is metered is what the formulas say", worst < 0.05, f"at most {worst:.1%} apart"),
        _check("sketch, union and gather give the dense average", error < 1e-5, f"largest error {error:.1e}"),
        _check("a union never sends more than a sketch", not longer, f"{len(longer)} of {len(found)} cases"),
        _check("with identical supports a sketch sends less than a gather", all(same.values()), told),
        _check("with disjoint supports it never does", not apart, f"{len(apart)} cases"),
    ]


def _check(text: str, holds: bool, detail: str) -> dict[str, Any]:
    return {"text": text, "holds": holds, "detail": detail}


def everything(driver: object, argument: dict[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    found = meter_all(lambda done, total: tell({"step": done, "steps": total}))
    return {"tables": tables(found), "figures": figures(found), "checks": checks(found)}


def build_plan(full: bool = False, data: str | None = None) -> RunPlan:
    config = {"numel": NUMEL, "workers": WORKERS, "densities": DENSITIES, "supports": list(OVERLAPS), "ways": WAYS}
    head = {"title": "When a sketch pays", "description": (__doc__ or "").replace("\n", " "), "config": config}
    jobs = [Job("all", f"{__name__}:everything", {}, "sketches against their rivals")]
    return RunPlan("sketch", head, jobs, lambda results: results[0])
