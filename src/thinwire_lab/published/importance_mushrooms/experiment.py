"""E1: logistic regression on the mushrooms with gradients compressed by S0's operators, with and without its Q.

One worker, ridge 0.1, step 1/2.5, k = 22 of 112, until the gradient has shrunk by 1e-6. Q rounds log2 of what is sent;
S0 counts ceil(log2(p + 1)) bits for a sent value 2^-p: no sign, no position, no scale. These legacy bits are reproduced
beside honest payload bytes. Operators that take an importance w solve for it anew before every message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.importance import ImportanceSolver

from ...configuration.run_plan import Job, RunPlan
from ...configuration.slugs import slugify
from ...tasks.factored_logistic import FactoredLogistic
from ...tasks.logistic import Logistic, mushrooms
from ..descent import Stop, Trace, descend, telling
from .tables import claims, curves, outcome, time_spent

RIDGE, SMOOTHNESS = 0.1, 2.5
Q = ', values=nearest_power2(metric="log", max_exponent=0)'
WITH_Q, WITHOUT_Q = Stop(messages=2000, bits=300_000), Stop(messages=1500)  # 300,000 bits are S0's
PUBLISHED = {"iterations": 1126, "legacy_bits": 111_178}
SOLVERS = {
    "simplex": ImportanceSolver("simplex", steps=100, eta=1.0, lam=0.1, warm_start=True, keep="last"),
    "box": ImportanceSolver("box", steps=100, eta=1.0, high=1.0, start="center", warm_start=True, keep="last"),
}


@dataclass(frozen=True)
class Operator:
    """A row of the table: `{q}` in its text is where Q goes."""

    label: str
    text: str
    solver: str = ""  # which w, if any
    step: float = 1.0  # over L

    def composition(self, quantised: bool) -> str:
        return self.text.format(q=Q if quantised else "")


OPERATORS = (
    Operator("TopK", "topk(k=22{q})"),
    Operator("TopK, step 2/L", "topk(k=22{q})", step=2.0),
    Operator("TopK, step (d/k)/L", "topk(k=22{q})", step=112 / 22),  # as long as scaled RandK's
    Operator("RandK, plain", "randomk(k=22, scaled=false{q})"),
    Operator("RandK, scaled", "randomk(k=22{q})"),
    Operator("SquareStochastic", "energy_sampling(k=22{q})"),
    Operator("MD Stochastic", "importance_sampling(k=22{q})", "simplex"),
    Operator("MD Poisson", "importance_sampling(k=22, poisson=true{q})", "simplex"),
    Operator("MD Greedy", "importance_topk(k=22{q})", "simplex"),
    Operator("TopK then MD Greedy", "importance_topk(k=22, pool_factor=2{q})", "simplex"),
    Operator("MD Greedy Weighted", 'importance_topk(k=22, weights="normalized"{q})', "simplex"),
    Operator("MD Greedy Weighted, s = 1", 'importance_topk(k=22, weights="plain"{q})', "simplex"),
    Operator("MD Weighted Greedy, unscaled", 'impk(k=22, weights="none"{q})', "simplex"),
    Operator("MD Weighted Greedy", 'impk(k=22, weights="normalized"{q})', "simplex"),
    Operator("MD Weighted Greedy, s = 1", 'impk(k=22, weights="plain"{q})', "simplex"),
    Operator("GD Greedy", "importance_topk(k=22{q})", "box"),
    Operator("GD Greedy Weighted", 'importance_topk(k=22, weights="normalized"{q})', "box"),
    Operator("GD Weighted Greedy", 'impk(k=22, weights="normalized"{q})', "box"),
    Operator("GD Greedy, step 2/L", "importance_topk(k=22{q})", "box", 2.0),
    Operator("GD Greedy Weighted, step 2/L", 'importance_topk(k=22, weights="normalized"{q})', "box", 2.0),
    Operator("GD Weighted Greedy, step 2/L", 'impk(k=22, weights="normalized"{q})', "box", 2.0),
)


def start() -> Tensor:
    """S0's starting point: numpy's seed 18, scaled to length one half."""
    point = np.random.RandomState(18).rand(112)
    return torch.tensor(point / np.linalg.norm(point) * 0.5)


@lru_cache(maxsize=1)
def quick_mushrooms() -> tuple[Logistic, FactoredLogistic]:
    """The problem, and a quicker form of its gradient for the solver; the descent itself keeps to the first."""
    problem = mushrooms(RIDGE, torch.float64)
    return problem, FactoredLogistic.of(problem)


def run_one(operator: Operator, quantised: bool, stop: Stop, tell: Callable[[int], None] = lambda done: None) -> Trace:
    problem, quick = quick_mushrooms()
    gamma = operator.step / SMOOTHNESS
    solver = SOLVERS[operator.solver] if operator.solver else None
    return descend(problem, operator.composition(quantised), start(), gamma, stop, solver, quick, tell)


def row(driver: object, task: dict[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """One row with or without Q, as plain JSON."""
    operator, quantised = Operator(**task["operator"]), task["quantised"]
    stop = WITH_Q if quantised else WITHOUT_Q
    trace = run_one(operator, quantised, stop, telling(tell, stop.messages))
    head = {"label": operator.label, "composition": operator.composition(quantised), "quantised": quantised}
    seconds = {"seconds": trace.seconds, "solver_seconds": trace.solver_seconds}
    return head | trace.figures() | {"curve": trace.thinned()} | seconds


def build_plan(full: bool = False, data: str | None = None) -> RunPlan:
    """A job for every row; there is one size only."""
    rows = [(operator, q) for q in (True, False) for operator in OPERATORS if q or operator.step == 1.0]
    jobs = [
        Job(f"{'with' if q else 'without'}-q-{slugify(operator.label)}", f"{__name__}:row",
            {"operator": asdict(operator), "quantised": q}, f"{operator.label}, {'with' if q else 'without'} Q")
        for operator, q in rows
    ]  # fmt: skip
    about = (__doc__ or "").partition("\n\n")[2].replace("\n", " ")
    head = {"title": "E1: S0's operators on the mushrooms", "about": about, "config": config()}
    return RunPlan("importance-mushrooms", head, jobs, summarize)


def summarize(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "found": [{key: value for key, value in row.items() if "seconds" not in key} for row in found],
        "checks": [*reproduced(found), repeatable()],
        "tables": [outcome(found), claims(found), time_spent(found)], "figures": curves(found),
    }  # fmt: skip


def config() -> dict[str, Any]:
    solvers = {name: asdict(solver) for name, solver in SOLVERS.items()}
    stops = {"with Q": asdict(WITH_Q), "without Q": asdict(WITHOUT_Q)}
    operators = [asdict(operator) for operator in OPERATORS]
    return {"ridge": RIDGE, "L": SMOOTHNESS, "stop": stops, "solvers": solvers, "operators": operators}


def reproduced(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """TopK with Q must give the published figures."""
    (topk,) = (row for row in found if row["label"] == "TopK" and row["quantised"])
    return [
        {"text": f"TopK, {name}: {topk[name]:,}", "holds": topk[name] == value, "detail": f"published: {value:,}"}
        for name, value in PUBLISHED.items()
    ]


def repeatable(messages: int = 10) -> dict[str, Any]:
    """The same run twice gives the same figures, whatever the clock says."""
    operator = next(operator for operator in OPERATORS if operator.label == "MD Stochastic")
    first, second = (run_one(operator, True, Stop(messages=messages)) for _ in range(2))
    same = first.figures() == second.figures() and first.thinned() == second.thinned()
    return {
        "text": "a repeated run gives the same figures", "holds": same,
        "detail": f"{operator.label}, {messages} messages, to the last bit",
    }  # fmt: skip
