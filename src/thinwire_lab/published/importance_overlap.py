"""E1b: what E1's importance w knows that the gradient does not.

First, on the mushrooms: how many of the 22 coordinates with the largest w are among the 22 with the largest g². w
starts at g² and takes 200 mirror steps, at 100 random points, with trial step k/L = 22/2.5. Such a step makes sense for
w itself, which has sum 1; E1's solver takes w / max w, for which it is 22 times too long. Both are shown. Second, with
112 columns of noise beside the true ones, uniform in [0, 1] or Bernoulli with the true columns' means: E1's protocol
at k = 44 of 224, with the true L; which columns w and |g| point at, and whether w helps to get on.
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
from .descent import LAYER, GradientOnly, Problem, Stop, descend, telling
from .importance_mushrooms.experiment import RIDGE, SMOOTHNESS, SOLVERS, Q, quick_mushrooms

KEPT, POINTS = 22, 100
FROM_SQUARES = replace(SOLVERS["simplex"], steps=200, start="gradient_squared", warm_start=False)
# The same mirror steps with trials that take w itself: in terms of 112 w, of which the scaled simplex is made,
# log w <- (1 - 0.1) log w - slope has eta = 112 / (1 - 0.1), lam = 0.1 / 112, and the trial step is k / L / 112.
ITSELF = replace(FROM_SQUARES, constraint="scaled_simplex", eta=112 / 0.9, lam=0.1 / 112)
TRIALS = {"w itself": (ITSELF, KEPT / SMOOTHNESS / 112), "w / max w": (FROM_SQUARES, KEPT / SMOOTHNESS)}
AFRESH = replace(SOLVERS["simplex"], warm_start=False)
POINTS_AT = {"normal": "standard normal draws", "uniform": "uniform draws of length 1/2, as E1 begins"}
PUBLISHED = {"mean": 0.90, "least": 0.73}
KINDS = ("uniform", "Bernoulli")
MESSAGES = 300
LOOKS = (0, 30, 300)  # messages of Top-k after which w and g are looked at
METHODS = {
    "TopK": f"topk(k=44{Q})",
    "RandK, plain": f"randomk(k=44, scaled=false{Q})",
    "MD Greedy": f"importance_topk(k=44{Q})",
}
BINS = 24
SHOWN = {"w": "w / mean w - 1", "|g|": "|g| / largest |g|"}


def importance_at(problem: Problem, weights: Tensor, gamma: float, solver: ImportanceSolver) -> Tensor:
    point, gradient = {LAYER: weights}, {LAYER: problem.gradient(weights)}
    return loopback(solver.solve(GradientOnly(problem), point, gradient, gamma)).importance[LAYER]


def overlap(one: Tensor, other: Tensor, k: int) -> float:
    """The share of the k largest of one that are among the k largest of the other."""
    return len(set(largest(one, k).tolist()) & set(largest(other, k).tolist())) / k


def overlaps(kind: str, trial: str, count: int) -> list[float]:
    """At points as E1's start (uniform draws, scaled to length 1/2) or at normal ones."""
    _, quick = quick_mushrooms()
    solver, gamma = TRIALS[trial]
    draws = np.random.RandomState(18)
    shares = []
    for _ in range(count):
        point = draws.rand(112) if kind == "uniform" else draws.randn(112)
        weights = torch.tensor(point / np.linalg.norm(point) * 0.5 if kind == "uniform" else point)
        w = importance_at(quick, weights, gamma, solver)
        shares.append(overlap(w, quick.gradient(weights).abs(), KEPT))
    return shares


def noisy(kind: str) -> Logistic:
    """The mushrooms with as many columns of noise behind the true ones."""
    problem = mushrooms(RIDGE, torch.float64)
    draws = np.random.RandomState(18).rand(*problem.features.shape)
    noise = torch.tensor(draws if kind == "uniform" else draws < problem.features.mean(0).numpy())
    return Logistic(torch.cat((problem.features, noise.to(torch.float64)), 1), problem.labels, RIDGE)


def noise_job(driver: object, task: dict[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """One kind of noise: what w and |g| look like along Top-k's way, and how far each method gets."""
    problem, messages = noisy(task["kind"]), task["messages"]
    draws = np.random.RandomState(18).rand(224)
    start, gamma = torch.tensor(draws / np.linalg.norm(draws) * 0.5), 1 / problem.smoothness
    runs = {}
    for at, (label, text) in enumerate(METHODS.items()):
        told = telling(tell, messages * len(METHODS), at * messages)
        solver = SOLVERS["simplex"] if label.startswith("MD") else None
        trace = descend(problem, text, start, gamma, Stop(messages=messages), solver, tell=told)
        runs[label] = trace.figures() | {"curve": trace.thinned()}
    looks = [look(problem, way(problem, start, gamma, after), gamma) | {"after": after} for after in task["looks"]]
    return {"kind": task["kind"], "L": problem.smoothness, "runs": runs, "looks": looks}


def way(problem: Logistic, start: Tensor, gamma: float, messages: int) -> Tensor:
    """Where Top-k without Q is after so many messages."""
    weights = start
    for _ in range(messages):
        gradient = problem.gradient(weights)
        kept = largest(gradient.abs(), 2 * KEPT)
        weights = weights.index_add(0, kept, gradient[kept], alpha=-gamma)
    return weights


def look(problem: Logistic, weights: Tensor, gamma: float) -> dict[str, Any]:
    """w and |g| of the true columns and of the noise, as SHOWN; and how many of the first 44 columns are true."""
    w, g = importance_at(problem, weights, gamma, AFRESH), problem.gradient(weights).abs()
    shown = {"w": w / w.mean() - 1, "|g|": g / g.max()}
    return {name: {
        "true": v[:112].tolist(), "noise": v[112:].tolist(),
        "true_share": float((largest(v, 2 * KEPT) < 112).double().mean()),
    } for name, v in shown.items()} | {"overlap": overlap(w, g, 2 * KEPT)}  # fmt: skip


def overlap_job(driver: object, task: dict[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    return {"shares": overlaps(task["kind"], task["trial"], task["points"])}


def build_plan(full: bool = False, data: str | None = None, points: int = POINTS, messages: int = MESSAGES) -> RunPlan:
    cases = [(kind, trial) for kind in POINTS_AT for trial in TRIALS]
    looks = [after for after in LOOKS if after <= messages]
    jobs = [
        *(Job(f"overlap-{slugify(kind)}-{slugify(trial)}", f"{__name__}:overlap_job",
              {"kind": kind, "trial": trial, "points": points}, f"overlap, {kind}, {trial}") for kind, trial in cases),
        *(Job(f"noise-{slugify(kind)}", f"{__name__}:noise_job", {"kind": kind, "messages": messages, "looks": looks},
              f"noise, {kind}") for kind in KINDS),
    ]  # fmt: skip
    head = {
        "title": "E1b: what the importance knows", "about": (__doc__ or "").partition("\n\n")[2].replace("\n", " "),
        "config": {"solver": asdict(FROM_SQUARES), "points": points, "messages": messages},
    }  # fmt: skip

    def summarize(results: list[dict[str, Any]]) -> dict[str, Any]:
        found = {case: result["shares"] for case, result in zip(cases, results[: len(cases)], strict=True)}
        noise, again = results[len(cases) :], overlaps(*cases[0], 3)
        check = {
            "text": "a repeated run gives the same overlaps", "holds": again == found[cases[0]][: len(again)],
            "detail": f"{len(again)} points, to the last bit",
        }  # fmt: skip
        by_case = {", ".join(case): shares for case, shares in found.items()}
        return {
            "found": {"overlap": by_case, "noise": noise}, "checks": [check],
            "tables": [overlap_table(found), noise_table(noise)], "figures": histograms(noise),
        }  # fmt: skip

    return RunPlan("importance-overlap", head, jobs, summarize)


def overlap_table(found: dict[tuple[str, str], list[float]]) -> dict[str, Any]:
    rows = [[POINTS_AT[kind], trial, float(np.mean(v)), min(v), max(v)] for (kind, trial), v in found.items()]
    return {
        "title": "The 22 largest w among the 22 largest g²",
        "note": "The published figures come without a word on the points or on what a trial takes.",
        "columns": ["points", "trials take", "mean", "least", "most"],
        "rows": [*rows, ["published", "", PUBLISHED["mean"], PUBLISHED["least"], None]],
    }


def noise_table(noise: list[dict[str, Any]]) -> dict[str, Any]:
    """How many of the columns pointed at are true, and how far each method got with Q."""
    rows: list[list[Any]] = []
    for found in noise:
        for seen in found["looks"]:
            rows.append([f"{found['kind']}: share of true columns among the first 44 after {seen['after']} messages",
                         f"by w {seen['w']['true_share']:.3f}, by |g| {seen['|g|']['true_share']:.3f}, "
                         f"alike {seen['overlap']:.3f}"])  # fmt: skip
        ends = ", ".join(f"{label} {run['norm']:.2e}" for label, run in found["runs"].items())
        messages = max(run["iterations"] + 1 for run in found["runs"].values())
        rows.append([f"{found['kind']}: relative gradient norm after {messages} messages, L = {found['L']:.2f}", ends])
    return {"title": "With 112 columns of noise", "note": "", "columns": ["what", "measured"], "rows": rows}


def histograms(noise: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Counts of w and of |g|, of true and noise columns, at the last look."""
    figures = []
    for found in noise:
        seen = found["looks"][-1]
        for name in ("w", "|g|"):
            both = seen[name]["true"] + seen[name]["noise"]
            edges = np.linspace(min(both), max(both), BINS + 1)
            curves = [{"label": which, **outline(seen[name][which], edges)} for which in ("true", "noise")]
            figures.append({
                "title": f"{name} of true columns and of {found['kind']} noise, after {seen['after']} messages",
                "note": f"Of 112 columns each, in {BINS} bins from the least to the largest of both.",
                "x": {"title": SHOWN[name], "log": False, "unit": "number"},
                "y": {"title": "columns", "log": False, "unit": "number"}, "curves": curves,
            })  # fmt: skip
    return figures


def outline(values: list[float], edges: NDArray[np.float64]) -> dict[str, list[float]]:
    """A histogram as the outline of its bars, from zero to zero."""
    counts, _ = np.histogram(values, bins=edges)
    return {"x": np.repeat(edges, 2).tolist(), "y": [0.0, *np.repeat(counts, 2).astype(float).tolist(), 0.0]}
