"""importance-quadratic: the operators of importance-mushrooms on a quadratic, to test whether the data set matters.

f(x) = x·Ax / 2 with 128 evenly spaced eigenvalues from 1 to 1000 in a random basis, step 1/L, k = 25 of 128, from a
random point of length 1 until the gradient norm has shrunk by 1e-6. Without Q, which sends nothing above 1 while these
gradients start at several hundred. w is solved for at every tenth message only, which makes the check ten times faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..configuration.run_plan import Job, RunPlan
from ..configuration.slugs import slugify
from .descent import StopRule, descend, throttle_progress
from .importance_mushrooms.experiment import METHODS, SOLVERS, SparseMethod
from .importance_mushrooms.tables import round_norm

DIM, SMALLEST, LARGEST, KEPT = 128, 1.0, 1000.0, 25
STOP = StopRule(messages=20_000)
EVERY = 10
ROWS = (SparseMethod("dense", "dense()"), *(op for op in METHODS if op.step == 1.0 and "s = 1" not in op.label))


class Quadratic:
    """f(x) = x·Ax / 2."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def gradient(self, weights: Tensor) -> Tensor:
        return self.matrix @ weights


@lru_cache(maxsize=1)
def make_problem() -> tuple[Quadratic, Tensor]:
    """Return the quadratic and the starting point."""
    draws = np.random.RandomState(18)
    basis, _ = np.linalg.qr(draws.randn(DIM, DIM))
    point = draws.randn(DIM)
    matrix = basis @ np.diag(np.linspace(SMALLEST, LARGEST, DIM)) @ basis.T
    return Quadratic(torch.tensor(matrix)), torch.tensor(point / np.linalg.norm(point))


def run_job(driver: object, task: dict[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """Run one method; return its figures as plain JSON."""
    method, stop = SparseMethod(**task["method"]), StopRule(**task["stop"])
    quadratic, start = make_problem()
    solver = replace(SOLVERS[method.solver], refresh_every=EVERY) if method.solver else None
    text = method.composition(False).replace("k=22", f"k={KEPT}")
    report = throttle_progress(tell, stop.messages)
    trace = descend(quadratic, text, start, method.step / LARGEST, stop, solver, tell=report)
    return {"label": method.label, "composition": text} | trace.final_figures() | {"curve": trace.sample_curves()}


def build_plan(full: bool = False, data: str | None = None, stop: StopRule = STOP) -> RunPlan:
    jobs = [
        Job(slugify(op.label), f"{__name__}:run_job", {"method": asdict(op), "stop": asdict(stop)}, op.label)
        for op in ROWS
    ]
    description = (__doc__ or "").partition("\n\n")[2].replace("\n", " ")
    config = {"dim": DIM, "mu": SMALLEST, "L": LARGEST, "k": KEPT, "every": EVERY, "stop": asdict(stop)}
    head = {
        "title": "importance-quadratic: importance operators on a quadratic",
        "description": description,
        "config": config,
    }

    def summarize(found: list[dict[str, Any]]) -> dict[str, Any]:
        tables, figures = [build_outcome_table(found, stop)], [build_figures(found)]
        return {"found": found, "checks": build_checks(found, stop), "tables": tables, "figures": figures}

    return RunPlan("importance-quadratic", head, jobs, summarize)


def build_checks(found: list[dict[str, Any]], stop: StopRule) -> list[dict[str, Any]]:
    """Check that at step 1/L neither dense descent nor Top-k diverges."""
    dense, topk = found[0], found[1]
    arrived = all(row["reached"] or row["iterations"] == stop.messages - 1 for row in (dense, topk))
    falling = max(dense["norm"], topk["norm"]) < 1
    detail = f"dense ends at {dense['norm']:.1e}, Top-k at {topk['norm']:.1e}"
    return [{"text": "dense and Top-k descend without diverging", "holds": arrived and falling, "detail": detail}]


def build_outcome_table(found: list[dict[str, Any]], stop: StopRule) -> dict[str, Any]:
    names = ("iterations", "payload_bytes")
    rows = [[r["label"], *(r[name] if r["reached"] else None for name in names), round_norm(r["norm"])] for r in found]
    return {
        "title": f"Cost of shrinking the gradient norm by {stop.tolerance:g}",
        "note": f"A dash: not within {stop.messages:,} messages, or the gradient grew by {stop.divergence:g}.",
        "columns": ["operator", "iterations", "payload bytes", "last norm"],
        "rows": rows,
    }


def build_figures(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "title": "Relative gradient norm against payload bytes",
        "note": "",
        "x": {"title": "payload bytes", "log": False, "unit": "bytes"},
        "y": {"title": "relative gradient norm", "log": True, "unit": "number"},
        "curves": [{"label": r["label"], "x": r["curve"]["payload_bytes"], "y": r["curve"]["norm"]} for r in found],
    }
