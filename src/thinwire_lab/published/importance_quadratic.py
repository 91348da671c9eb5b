"""E1c: E1's operators on a quadratic, a check that nothing in E1 hangs on the mushrooms.

f(x) = x·Ax / 2 with 128 evenly spaced eigenvalues from 1 to 1000 in a random basis, step 1/L, k = 25 of 128, from a
random point of length 1 until the gradient has shrunk by 1e-6. No Q: it sends nothing above 1, and these gradients
begin at several hundred. w is found anew for every tenth message only, which makes the check ten times as quick.
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
from .descent import Stop, descend, telling
from .importance_mushrooms.experiment import OPERATORS, SOLVERS, Operator
from .importance_mushrooms.tables import short

DIM, SMALLEST, LARGEST, KEPT = 128, 1.0, 1000.0, 25
STOP = Stop(messages=20_000)
EVERY = 10
ROWS = (Operator("dense", "dense()"), *(op for op in OPERATORS if op.step == 1.0 and "s = 1" not in op.label))


class Quadratic:
    """x·Ax / 2."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def gradient(self, weights: Tensor) -> Tensor:
        return self.matrix @ weights


@lru_cache(maxsize=1)
def problem() -> tuple[Quadratic, Tensor]:
    """The quadratic and where descent begins."""
    draws = np.random.RandomState(18)
    basis, _ = np.linalg.qr(draws.randn(DIM, DIM))
    point = draws.randn(DIM)
    matrix = basis @ np.diag(np.linspace(SMALLEST, LARGEST, DIM)) @ basis.T
    return Quadratic(torch.tensor(matrix)), torch.tensor(point / np.linalg.norm(point))


def row(driver: object, task: dict[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    operator, stop = Operator(**task["operator"]), Stop(**task["stop"])
    quadratic, start = problem()
    solver = replace(SOLVERS[operator.solver], refresh_every=EVERY) if operator.solver else None
    text = operator.composition(False).replace("k=22", f"k={KEPT}")
    told = telling(tell, stop.messages)
    trace = descend(quadratic, text, start, operator.step / LARGEST, stop, solver, tell=told)
    return {"label": operator.label, "composition": text} | trace.figures() | {"curve": trace.thinned()}


def build_plan(full: bool = False, data: str | None = None, stop: Stop = STOP) -> RunPlan:
    jobs = [
        Job(slugify(op.label), f"{__name__}:row", {"operator": asdict(op), "stop": asdict(stop)}, op.label)
        for op in ROWS
    ]
    about = (__doc__ or "").partition("\n\n")[2].replace("\n", " ")
    config = {"dim": DIM, "mu": SMALLEST, "L": LARGEST, "k": KEPT, "every": EVERY, "stop": asdict(stop)}
    head = {"title": "E1c: E1's operators on a quadratic", "about": about, "config": config}

    def summarize(found: list[dict[str, Any]]) -> dict[str, Any]:
        tables, figures = [outcome(found, stop)], [curves(found)]
        return {"found": found, "checks": checks(found, stop), "tables": tables, "figures": figures}

    return RunPlan("importance-quadratic", head, jobs, summarize)


def checks(found: list[dict[str, Any]], stop: Stop) -> list[dict[str, Any]]:
    """At step 1/L neither dense descent nor Top-k can go up, and the latter sends less."""
    dense, topk = found[0], found[1]
    arrived = all(row["reached"] or row["iterations"] == stop.messages - 1 for row in (dense, topk))
    falling = max(dense["norm"], topk["norm"]) < 1
    detail = f"dense ends at {dense['norm']:.1e}, Top-k at {topk['norm']:.1e}"
    return [{"text": "dense and Top-k descend without exploding", "holds": arrived and falling, "detail": detail}]


def outcome(found: list[dict[str, Any]], stop: Stop) -> dict[str, Any]:
    names = ("iterations", "payload_bytes")
    rows = [[r["label"], *(r[name] if r["reached"] else None for name in names), short(r["norm"])] for r in found]
    return {
        "title": f"What it takes to shrink the gradient by {stop.tolerance:g}",
        "note": f"A dash: not within {stop.messages:,} messages, or the gradient grew by {stop.explosion:g}.",
        "columns": ["operator", "iterations", "payload bytes", "last norm"],
        "rows": rows,
    }


def curves(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "title": "Relative gradient norm against payload bytes",
        "note": "",
        "x": {"title": "payload bytes", "log": False, "unit": "bytes"},
        "y": {"title": "relative gradient norm", "log": True, "unit": "number"},
        "curves": [{"label": r["label"], "x": r["curve"]["payload_bytes"], "y": r["curve"]["norm"]} for r in found],
    }
