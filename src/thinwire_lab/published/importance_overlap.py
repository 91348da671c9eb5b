"""importance-overlap: how the importance vector w of Khafizov & Beznosikov (2024) differs from the gradient.

First, on the mushrooms: the share of the 22 coordinates with the largest w that are among the 22 with the largest g². w
starts at g² and takes 200 mirror-descent steps, at 100 random points, with trial step k/L = 22/2.5. This step fits w
itself, which has sum 1; the solver of importance-mushrooms uses w / max w, for which it is 22 times too long. Both are
reported. Second, with 112 noise columns beside the true ones, uniform in [0, 1] or Bernoulli with the true columns'
means: the protocol of importance-mushrooms at k = 44 of 224, with the true L; the share of true columns among those
with the largest w and |g|, and whether w speeds up the descent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.core import loopback
from thinwire.importance import ImportanceSolver
from thinwire.kernels import largest

from ..configuration.run_plan import Job, RunPlan
from ..configuration.slugs import slugify
from ..tasks.logistic import Logistic, mushrooms
from .descent import LAYER, GradientOnly, Problem, StopRule, descend, throttle_progress
from .importance_mushrooms.experiment import RIDGE, SMOOTHNESS, SOLVERS, Q, load_mushrooms

KEPT, POINTS = 22, 100
FROM_SQUARES = replace(SOLVERS["simplex"], steps=200, start="gradient_squared", warm_start=False)
# The same mirror steps with trials that use w itself: in terms of 112 w, the scaled simplex,
# log w <- (1 - 0.1) log w - slope has eta = 112 / (1 - 0.1), lam = 0.1 / 112, and the trial step is k / L / 112.
ITSELF = replace(FROM_SQUARES, constraint="scaled_simplex", eta=112 / 0.9, lam=0.1 / 112)
TRIALS = {"w itself": (ITSELF, KEPT / SMOOTHNESS / 112), "w / max w": (FROM_SQUARES, KEPT / SMOOTHNESS)}
COLD_START = replace(SOLVERS["simplex"], warm_start=False)
POINTS_AT = {
    "normal": "standard normal points",
    "uniform": "uniform points of length 1/2, as importance-mushrooms starts",
}
PUBLISHED = {"mean": 0.90, "min": 0.73}
KINDS = ("uniform", "Bernoulli")
MESSAGES = 300
INSPECTED_AT = (0, 30, 300)  # messages of Top-k after which w and g are compared
METHODS = {
    "TopK": f"topk(k=44{Q})",
    "RandK, plain": f"randomk(k=44, scaled=false{Q})",
    "MD Greedy": f"importance_topk(k=44{Q})",
}
BINS = 24
SCALES = {"w": "w / mean w - 1", "|g|": "|g| / largest |g|"}


def solve_importance(problem: Problem, weights: Tensor, gamma: float, solver: ImportanceSolver) -> Tensor:
    point, gradient = {LAYER: weights}, {LAYER: problem.gradient(weights)}
    return loopback(solver.solve(GradientOnly(problem), point, gradient, gamma)).importance[LAYER]


def compute_overlap(one: Tensor, other: Tensor, k: int) -> float:
    """Return the share of the k largest of one that are among the k largest of the other."""
    return len(set(largest(one, k).tolist()) & set(largest(other, k).tolist())) / k


def measure_overlaps(kind: str, trial: str, count: int) -> list[float]:
    """Return overlaps at uniform points scaled to length 1/2, or at standard normal points."""
    _, fast = load_mushrooms()
    solver, gamma = TRIALS[trial]
    draws = np.random.RandomState(18)
    shares = []
    for _ in range(count):
        point = draws.rand(112) if kind == "uniform" else draws.randn(112)
        weights = torch.tensor(point / np.linalg.norm(point) * 0.5 if kind == "uniform" else point)
        w = solve_importance(fast, weights, gamma, solver)
        shares.append(compute_overlap(w, fast.gradient(weights).abs(), KEPT))
    return shares


def add_noise_columns(kind: str) -> Logistic:
    """Return the mushrooms with as many noise columns as true ones, behind them."""
    problem = mushrooms(RIDGE, torch.float64)
    draws = np.random.RandomState(18).rand(*problem.features.shape)
    noise = torch.tensor(draws if kind == "uniform" else draws < problem.features.mean(0).numpy())
    return Logistic(torch.cat((problem.features, noise.to(torch.float64)), 1), problem.labels, RIDGE)


def run_noise_job(driver: object, task: dict[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """Run one kind of noise: compare w and |g| along Top-k's path, and run each method."""
    problem, messages = add_noise_columns(task["kind"]), task["messages"]
    draws = np.random.RandomState(18).rand(224)
    start, gamma = torch.tensor(draws / np.linalg.norm(draws) * 0.5), 1 / problem.smoothness
    runs = {}
    for at, (label, text) in enumerate(METHODS.items()):
        report = throttle_progress(tell, messages * len(METHODS), at * messages)
        solver = SOLVERS["simplex"] if label.startswith("MD") else None
        trace = descend(problem, text, start, gamma, StopRule(messages=messages), solver, tell=report)
        runs[label] = trace.final_figures() | {"curve": trace.sample_curves()}
    looks = []
    for after in task["looks"]:
        weights = run_topk(problem, start, gamma, after)
        looks.append(inspect_point(problem, weights, gamma) | {"after": after})
    return {"kind": task["kind"], "L": problem.smoothness, "runs": runs, "looks": looks}


def run_topk(problem: Logistic, start: Tensor, gamma: float, messages: int) -> Tensor:
    """Return the weights after a number of messages of Top-k without Q."""
    weights = start
    for _ in range(messages):
        gradient = problem.gradient(weights)
        kept = largest(gradient.abs(), 2 * KEPT)
        weights = weights.index_add(0, kept, gradient[kept], alpha=-gamma)
    return weights


def inspect_point(problem: Logistic, weights: Tensor, gamma: float) -> dict[str, Any]:
    """Return w and |g| of true and noise columns, scaled as in SCALES, and the share of true columns in the top 44."""
    w, g = solve_importance(problem, weights, gamma, COLD_START), problem.gradient(weights).abs()
    scaled = {"w": w / w.mean() - 1, "|g|": g / g.max()}
    return {name: {
        "true": v[:112].tolist(), "noise": v[112:].tolist(),
        "true_share": float((largest(v, 2 * KEPT) < 112).double().mean()),
    } for name, v in scaled.items()} | {"overlap": compute_overlap(w, g, 2 * KEPT)}  # fmt: skip


def run_overlap_job(driver: object, task: dict[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    return {"shares": measure_overlaps(task["kind"], task["trial"], task["points"])}


def build_plan(full: bool = False, data: str | None = None, points: int = POINTS, messages: int = MESSAGES) -> RunPlan:
    cases = [(kind, trial) for kind in POINTS_AT for trial in TRIALS]
    looks = [after for after in INSPECTED_AT if after <= messages]
    jobs = [
        *(Job(f"overlap-{slugify(kind)}-{slugify(trial)}", f"{__name__}:run_overlap_job",
              {"kind": kind, "trial": trial, "points": points}, f"overlap, {kind}, {trial}") for kind, trial in cases),
        *(Job(f"noise-{slugify(kind)}", f"{__name__}:run_noise_job",
              {"kind": kind, "messages": messages, "looks": looks}, f"noise, {kind}") for kind in KINDS),
    ]  # fmt: skip
    head = {
        "title": "importance-overlap: the importance vector and the gradient",
        "description": (__doc__ or "").partition("\n\n")[2].replace("\n", " "),
        "config": {"solver": asdict(FROM_SQUARES), "points": points, "messages": messages},
    }  # fmt: skip

    def summarize(results: list[dict[str, Any]]) -> dict[str, Any]:
        found = {case: result["shares"] for case, result in zip(cases, results[: len(cases)], strict=True)}
        noise, again = results[len(cases) :], measure_overlaps(*cases[0], 3)
        check = {
            "text": "a repeated run gives the same overlaps", "holds": again == found[cases[0]][: len(again)],
            "detail": f"{len(again)} points, bit for bit",
        }  # fmt: skip
        by_case = {", ".join(case): shares for case, shares in found.items()}
        return {
            "found": {"overlap": by_case, "noise": noise}, "checks": [check],
            "tables": [build_overlap_table(found), build_noise_table(noise)], "figures": build_histograms(noise),
        }  # fmt: skip

    return RunPlan("importance-overlap", head, jobs, summarize)


def build_overlap_table(found: dict[tuple[str, str], list[float]]) -> dict[str, Any]:
    rows = [[POINTS_AT[kind], trial, float(np.mean(v)), min(v), max(v)] for (kind, trial), v in found.items()]
    return {
        "title": "Share of the 22 largest w among the 22 largest g²",
        "note": "The publication states neither the points nor what a trial uses.",
        "columns": ["points", "trials use", "mean", "min", "max"],
        "rows": [*rows, ["published", "", PUBLISHED["mean"], PUBLISHED["min"], None]],
    }


def build_noise_table(noise: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the share of true columns among the selected ones, and the final norm of each method with Q."""
    rows: list[list[Any]] = []
    for found in noise:
        for seen in found["looks"]:
            rows.append([f"{found['kind']}: share of true columns among the top 44 after {seen['after']} messages",
                         f"by w {seen['w']['true_share']:.3f}, by |g| {seen['|g|']['true_share']:.3f}, "
                         f"overlap {seen['overlap']:.3f}"])  # fmt: skip
        ends = ", ".join(f"{label} {run['norm']:.2e}" for label, run in found["runs"].items())
        messages = max(run["iterations"] + 1 for run in found["runs"].values())
        rows.append([f"{found['kind']}: relative gradient norm after {messages} messages, L = {found['L']:.2f}", ends])
    return {"title": "With 112 noise columns", "note": "", "columns": ["quantity", "measured"], "rows": rows}


def build_histograms(noise: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return histograms of w and |g| for true and noise columns, at the last inspection."""
    figures = []
    for found in noise:
        seen = found["looks"][-1]
        for name in ("w", "|g|"):
            both = seen[name]["true"] + seen[name]["noise"]
            edges = np.linspace(min(both), max(both), BINS + 1)
            curves = [{"label": which, **outline_histogram(seen[name][which], edges)} for which in ("true", "noise")]
            figures.append({
                "title": f"{name} of true columns and of {found['kind']} noise, after {seen['after']} messages",
                "note": f"112 columns each, in {BINS} bins over the range of both.",
                "x": {"title": SCALES[name], "log": False, "unit": "number"},
                "y": {"title": "columns", "log": False, "unit": "number"}, "curves": curves,
            })  # fmt: skip
    return figures


def outline_histogram(values: list[float], edges: NDArray[np.float64]) -> dict[str, list[float]]:
    """Return a histogram as the outline of its bars."""
    counts, _ = np.histogram(values, bins=edges)
    return {"x": np.repeat(edges, 2).tolist(), "y": [0.0, *np.repeat(counts, 2).astype(float).tolist(), 0.0]}
