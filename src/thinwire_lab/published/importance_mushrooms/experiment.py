"""importance-mushrooms: logistic regression with the operators of Khafizov & Beznosikov (2024), with and without Q.

One worker on the mushrooms data set, ridge 0.1, step 1/2.5, k = 22 of 112, until the gradient norm has shrunk by 1e-6.
Q rounds sent values to powers of two. The paper counts ceil(log2(p + 1)) bits for a sent value 2^-p, without sign,
position and scale; these legacy bits are reproduced beside payload bytes. Operators that use an importance vector w
solve for it before every message.
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
from ..descent import DescentTrace, StopRule, descend, throttle_progress
from .tables import build_claims, build_figures, build_outcome_table, build_time_table

RIDGE, SMOOTHNESS = 0.1, 2.5
Q = ', values=nearest_power2(metric="log", max_exponent=0)'
WITH_Q, WITHOUT_Q = StopRule(messages=2000, bits=300_000), StopRule(messages=1500)  # 300,000 bits as published
PUBLISHED = {"iterations": 1126, "legacy_bits": 111_178}
SOLVERS = {
    "simplex": ImportanceSolver("simplex", steps=100, eta=1.0, lam=0.1, warm_start=True, keep="last"),
    "box": ImportanceSolver("box", steps=100, eta=1.0, high=1.0, start="center", warm_start=True, keep="last"),
}


@dataclass(frozen=True)
class SparseMethod:
    """A row of the table; `{q}` in its text is replaced by Q or nothing."""

    label: str
    text: str
    solver: str = ""  # key of SOLVERS; empty for methods without w
    step: float = 1.0  # in units of 1/L

    def composition(self, quantized: bool) -> str:
        return self.text.format(q=Q if quantized else "")


METHODS = (
    SparseMethod("TopK", "topk(k=22{q})"),
    SparseMethod("TopK, step 2/L", "topk(k=22{q})", step=2.0),
    SparseMethod("TopK, step (d/k)/L", "topk(k=22{q})", step=112 / 22),  # as long as scaled RandK's
    SparseMethod("RandK, plain", "randomk(k=22, scaled=false{q})"),
    SparseMethod("RandK, scaled", "randomk(k=22{q})"),
    SparseMethod("SquareStochastic", "energy_sampling(k=22{q})"),
    SparseMethod("MD Stochastic", "importance_sampling(k=22{q})", "simplex"),
    SparseMethod("MD Poisson", "importance_sampling(k=22, poisson=true{q})", "simplex"),
    SparseMethod("MD Greedy", "importance_topk(k=22{q})", "simplex"),
    SparseMethod("TopK then MD Greedy", "importance_topk(k=22, pool_factor=2{q})", "simplex"),
    SparseMethod("MD Greedy Weighted", 'importance_topk(k=22, weights="normalized"{q})', "simplex"),
    SparseMethod("MD Greedy Weighted, s = 1", 'importance_topk(k=22, weights="plain"{q})', "simplex"),
    SparseMethod("MD Weighted Greedy, unscaled", 'impk(k=22, weights="none"{q})', "simplex"),
    SparseMethod("MD Weighted Greedy", 'impk(k=22, weights="normalized"{q})', "simplex"),
    SparseMethod("MD Weighted Greedy, s = 1", 'impk(k=22, weights="plain"{q})', "simplex"),
    SparseMethod("GD Greedy", "importance_topk(k=22{q})", "box"),
    SparseMethod("GD Greedy Weighted", 'importance_topk(k=22, weights="normalized"{q})', "box"),
    SparseMethod("GD Weighted Greedy", 'impk(k=22, weights="normalized"{q})', "box"),
    SparseMethod("GD Greedy, step 2/L", "importance_topk(k=22{q})", "box", 2.0),
    SparseMethod("GD Greedy Weighted, step 2/L", 'importance_topk(k=22, weights="normalized"{q})', "box", 2.0),
    SparseMethod("GD Weighted Greedy, step 2/L", 'impk(k=22, weights="normalized"{q})', "box", 2.0),
)


def make_start() -> Tensor:
    """Return the published starting point: numpy's seed 18, scaled to length 1/2."""
    point = np.random.RandomState(18).rand(112)
    return torch.tensor(point / np.linalg.norm(point) * 0.5)


@lru_cache(maxsize=1)
def load_mushrooms() -> tuple[Logistic, FactoredLogistic]:
    """Return the problem, and a faster form of its gradient for the solver; the descent uses the first."""
    problem = mushrooms(RIDGE, torch.float64)
    return problem, FactoredLogistic.of(problem)


def run_method(
    method: SparseMethod, quantized: bool, stop: StopRule, tell: Callable[[int], None] = lambda done: None
) -> DescentTrace:
    """Run one descent."""
    problem, fast = load_mushrooms()
    gamma = method.step / SMOOTHNESS
    solver = SOLVERS[method.solver] if method.solver else None
    return descend(problem, method.composition(quantized), make_start(), gamma, stop, solver, fast, tell)


def run_job(driver: object, task: dict[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """Run one method with or without Q; return its figures as plain JSON."""
    method, quantized = SparseMethod(**task["method"]), task["quantized"]
    stop = WITH_Q if quantized else WITHOUT_Q
    trace = run_method(method, quantized, stop, throttle_progress(tell, stop.messages))
    head = {"label": method.label, "composition": method.composition(quantized), "quantized": quantized}
    seconds = {"seconds": trace.seconds, "solver_seconds": trace.solver_seconds}
    return head | trace.final_figures() | {"curve": trace.sample_curves()} | seconds


def build_plan(full: bool = False, data: str | None = None) -> RunPlan:
    """Build the plan: a job for every row; there is one size only."""
    rows = [(method, q) for q in (True, False) for method in METHODS if q or method.step == 1.0]
    jobs = [
        Job(f"{'with' if q else 'without'}-q-{slugify(method.label)}", f"{__name__}:run_job",
            {"method": asdict(method), "quantized": q}, f"{method.label}, {'with' if q else 'without'} Q")
        for method, q in rows
    ]  # fmt: skip
    description = (__doc__ or "").partition("\n\n")[2].replace("\n", " ")
    head = {
        "title": "importance-mushrooms: importance operators on the mushrooms",
        "description": description,
        "config": build_config(),
    }
    return RunPlan("importance-mushrooms", head, jobs, summarize)


def summarize(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return checks, tables and figures from the rows of all jobs."""
    return {
        "found": [{key: value for key, value in row.items() if "seconds" not in key} for row in found],
        "checks": [*check_published_figures(found), check_repeatability()],
        "tables": [build_outcome_table(found), build_claims(found), build_time_table(found)],
        "figures": build_figures(found),
    }  # fmt: skip


def build_config() -> dict[str, Any]:
    """Return the settings for the report."""
    solvers = {name: asdict(solver) for name, solver in SOLVERS.items()}
    stops = {"with Q": asdict(WITH_Q), "without Q": asdict(WITHOUT_Q)}
    methods = [asdict(method) for method in METHODS]
    return {"ridge": RIDGE, "L": SMOOTHNESS, "stop": stops, "solvers": solvers, "methods": methods}


def check_published_figures(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Check that TopK with Q gives the published figures."""
    (topk,) = (row for row in found if row["label"] == "TopK" and row["quantized"])
    return [
        {"text": f"TopK, {name}: {topk[name]:,}", "holds": topk[name] == value, "detail": f"published: {value:,}"}
        for name, value in PUBLISHED.items()
    ]


def check_repeatability(messages: int = 10) -> dict[str, Any]:
    """Check that running twice gives the same figures."""
    method = next(method for method in METHODS if method.label == "MD Stochastic")
    first, second = (run_method(method, True, StopRule(messages=messages)) for _ in range(2))
    same = first.final_figures() == second.final_figures() and first.sample_curves() == second.sample_curves()
    return {
        "text": "a repeated run gives the same figures", "holds": same,
        "detail": f"{method.label}, {messages} messages, bit for bit",
    }  # fmt: skip
