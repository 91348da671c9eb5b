"""Bytes of summing sparse tensors (count sketch, Charikar et al., 2002) against gathering them, by number of workers.

Every worker has a tensor of 65,536 float32 values of which 1 % or 5 % are not zero: at the same positions on all
workers, at independent positions, or at disjoint positions. The real aggregators average them in
lockstep and the meter counts; formulas are those of `compare_traffic`. Headers are counted
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
from .sketch_traffic import compare_traffic

_SUPPORT_KEY = "support"  # frozen: makes the random bits

NUMEL = 1 << 16
WORKERS = (2, 4, 8, 16, 32)
DENSITIES = (0.01, 0.05)
OVERLAPS: dict[str, float | str] = {"identical": 1.0, "independent": "independent", "disjoint": 0.0}
METHODS = {
    "sketch": "sketch(topk(k={k}))",
    "union": "union(topk(k={k}))",
    "gather": "gather(topk(k={k}))",
    "two_hop": "two_hop(topk(k={k}))",
    "dense": "dense()",
}
EXACT = ("sketch", "union", "gather")


Case: TypeAlias = tuple[float, str, int]  # density, supports, workers


class MeteredTraffic(NamedTuple):
    """Means over the workers of one step."""

    num_bytes: float  # without headers
    header_bytes: float
    messages: int
    error: float  # largest |value - dense average|, as a share of the largest value


Measurements: TypeAlias = Mapping[Case, Mapping[str, MeteredTraffic]]


def draw_supports(overlap: str, count: int, numel: int, workers: int) -> list[Tensor]:
    """Return each worker's positions: `count` of `numel`."""
    if overlap == "independent":
        return [
            distinct_positions(derive_key(_SUPPORT_KEY, r), count, numel, torch.device("cpu")) for r in range(workers)
        ]
    order = torch.randperm(numel, generator=torch.Generator().manual_seed(1))
    return [order[:count] if overlap == "identical" else order[r * count : (r + 1) * count] for r in range(workers)]


def measure_step(text: str, tensors: list[Tensor]) -> MeteredTraffic:
    """Measure one step of these workers."""
    spec, workers = TensorSpec.of("layer", tensors[0]), len(tensors)
    meters = [Meter() for _ in tensors]
    exchangers = [Exchanger([spec], parse(text), seed=1) for _ in tensors]
    pairs = enumerate(zip(exchangers, tensors, strict=True))
    outs = lockstep([e.run_step({"layer": t}, 0, World(r, workers)) for r, (e, t) in pairs], meters)
    mean = torch.stack(tensors).double().mean(0)
    sent = sum(meter.total().sent_bytes for meter in meters) / workers
    headers = sum(meter.sum_by("kind")[HEADER].sent_bytes for meter in meters) / workers
    error = float((outs[0]["layer"] - mean).abs().max() / mean.abs().max())
    return MeteredTraffic(sent - headers, headers, meters[0].total().requests, error)


def list_cases() -> Iterator[Case]:
    """Yield density, kind of supports, workers; disjoint supports only where they fit."""
    for density in DENSITIES:
        for overlap in OVERLAPS:
            yield from ((density, overlap, w) for w in WORKERS if overlap != "disjoint" or w * density <= 1)


def measure_cases(tell: Callable[[int, int], None]) -> dict[Case, dict[str, MeteredTraffic]]:
    found: dict[Case, dict[str, MeteredTraffic]] = {}
    total = len(list(list_cases()))
    for done, (density, overlap, workers) in enumerate(list_cases()):
        tell(done, total)
        count = math.ceil(density * NUMEL)
        generator = torch.Generator().manual_seed(workers)
        tensors = []
        for positions in draw_supports(overlap, count, NUMEL, workers):
            values = torch.randn(count, generator=generator)
            tensors.append(torch.zeros(NUMEL).index_put_((positions,), values))
        found[density, overlap, workers] = {way: measure_step(t.format(k=count), tensors) for way, t in METHODS.items()}
    tell(total, total)
    return found


def predict_bytes(case: Case) -> dict[str, float]:
    density, overlap, workers = case
    return compare_traffic(density, workers, OVERLAPS[overlap], NUMEL).num_bytes


def build_tables(found: Measurements) -> list[dict[str, Any]]:
    """Return tables by formula and metered separately, so that they are not confused."""
    by_way = {way: [row[way] for row in found.values()] for way in METHODS}
    most = [
        [w, max(m.messages for m in all_), round(max(m.header_bytes for m in all_)), max(m.error for m in all_)]
        for w, all_ in by_way.items()
    ]
    return [
        _table(found, "Bytes that a worker sends, by formula", "By compare_traffic, without headers.",
               lambda case, way: predict_bytes(case)[way]),
        _table(found, "Bytes that a worker sends, metered", "One step in lockstep, without headers.",
               lambda case, way: found[case][way].num_bytes),
        {"title": "Messages, headers, errors: maximum over all cases, metered",
         "note": "Headers: 16 bytes a message and peer, and lengths of parts. Errors: shares of the largest average.",
         "columns": ["method", "messages", "header bytes", "largest error"], "rows": most},
    ]  # fmt: skip


def _table(found: Measurements, title: str, note: str, figure: Callable[[Case, str], float]) -> dict[str, Any]:
    rows = [[f"{100 * case[0]:g} %", *case[1:], *(round(figure(case, way)) for way in METHODS)] for case in found]
    return {"title": title, "note": note, "columns": ["kept", "supports", "workers", *METHODS], "rows": rows}


def build_figures(found: Measurements) -> list[dict[str, Any]]:
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


def _curves(row: Measurements) -> list[dict[str, Any]]:
    workers = [case[2] for case in row]
    lines, marks = [], []
    for style, way in enumerate(METHODS):
        expected, got = [predict_bytes(case)[way] for case in row], [ways[way].num_bytes for ways in row.values()]
        lines.append({"label": f"{way}, by formula", "x": workers, "y": expected, "style": style})
        marks.append({"label": f"{way}, metered", "x": workers, "y": got, "style": style, "points": True})
    return lines + marks


def build_checks(found: Measurements) -> list[dict[str, Any]]:
    pairs = [(found[case][way].num_bytes, predict_bytes(case)[way]) for case in found for way in METHODS]
    worst = max(abs(got / expected - 1) for got, expected in pairs)
    error = max(row[way].error for row in found.values() for way in EXACT)
    longer = [case for case, row in found.items() if row["union"].num_bytes > row["sketch"].num_bytes]
    wins = {case for case, row in found.items() if row["sketch"].num_bytes < row["gather"].num_bytes}
    same = {density: [w for d, o, w in sorted(wins) if (d, o) == (density, "identical")] for density in DENSITIES}
    apart = [case for case in wins if case[1] == "disjoint"]
    told = ", ".join(f"{100 * density:g} % kept: from {won[0]} workers on" for density, won in same.items() if won)
    return [
        _check("metered bytes agree with the formulas", worst < 0.05, f"at most {worst:.1%} apart"),
        _check("sketch, union and gather give the dense average", error < 1e-5, f"largest error {error:.1e}"),
        _check("a union never sends more than a sketch", not longer, f"{len(longer)} of {len(found)} cases"),
        _check("with identical supports a sketch sends less than a gather", all(same.values()), told),
        _check("with disjoint supports it never does", not apart, f"{len(apart)} cases"),
    ]


def _check(text: str, holds: bool, detail: str) -> dict[str, Any]:
    return {"text": text, "holds": holds, "detail": detail}


def run_job(driver: object, argument: dict[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    found = measure_cases(lambda done, total: tell({"step": done, "steps": total}))
    return {"tables": build_tables(found), "figures": build_figures(found), "checks": build_checks(found)}


def build_plan(full: bool = False, data: str | None = None) -> RunPlan:
    config = {"numel": NUMEL, "workers": WORKERS, "densities": DENSITIES, "supports": list(OVERLAPS), "ways": METHODS}
    head = {
        "title": "Sketches against gathers: bytes by number of workers",
        "description": (__doc__ or "").replace("\n", " "),
        "config": config,
    }
    jobs = [Job("all", f"{__name__}:run_job", {}, "sketches and other aggregators")]
    return RunPlan("sketch", head, jobs, lambda results: results[0])
