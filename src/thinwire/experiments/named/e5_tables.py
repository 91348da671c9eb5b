"""What E5 shows: where each operator ends, and which of S1's expectations hold. Plain functions of the runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .e1_tables import short

Run = dict[str, Any]  # one entry of the result's "runs"

BIASED = ("Top-17", "Top-28", "SVD 1", "randomised SVD 1", "HOSVD", "ST-HOSVD", "tensor train 1", "PowerSGD 1")
UNFIT = ("EF21(Random-22, scaled)", "EF21(projection 3, scaled)")
SORTED, ALONE = "10 label-sorted workers", "1 worker"
LEVEL = 1e-2  # of the gradient norm, for comparing what it takes to get there
CLOSE = 0.005  # half a percent point of accuracy


def verdict(norms: Sequence[float | None], dense: float) -> str:
    """By the gradient norm: "converges" (ends within 10 times dense's), "diverges" (above where it began, or not
    finite), "stalls" (less than halved over the last third), else "still falling"."""
    finite = [math.inf if norm is None else norm for norm in norms]
    last, before = finite[-1], finite[len(finite) * 2 // 3]
    if last <= 10 * dense:
        return "converges"
    if not last < finite[0]:
        return "diverges"
    return "stalls" if last > before / 2 else "still falling"


def reaching(run: Run, level: float = LEVEL) -> tuple[int, float] | None:
    """Step and payload bytes at the first look that found the gradient norm at most `level`."""
    columns = (run["curve"][name] for name in ("step", "payload_bytes", "grad_norm"))
    return next(((s, b) for s, b, norm in zip(*columns, strict=True) if norm is not None and norm <= level), None)


def verdicts(runs: Sequence[Run], labels: Sequence[str], worlds: Sequence[str]) -> dict[str, Any]:
    rows = []
    for world in worlds:
        look = _finder(runs, world)
        dense = look("dense")["final"]["grad_norm"]
        for label in labels:
            cells: list[Any] = [label, world]
            for run in (look(label), look(_fed(label))):
                norm, accuracy = run["final"]["grad_norm"], run["final"]["accuracy"]
                cells += [verdict(run["curve"]["grad_norm"], dense), short(norm), f"{100 * accuracy:.2f} %"]
            bare = look(label)
            rows.append([*cells, round(bare["final"]["payload_bytes"] / bare["curve"]["step"][-1])])
    return {
        "title": "Where each operator ends",
        "note": (
            "By the gradient norm after all steps: converges (within 10 times dense's), diverges (above where it "
            "began), stalls (less than halved over the last third), or still falling. Accuracy: of the held-out rows."
        ),
        "columns": [
            "operator", "workers", "without memory", "gradient norm", "accuracy",
            "with EF21", "gradient norm", "accuracy", "bytes a step",
        ],
        "rows": rows,
    }  # fmt: skip


def expectations(runs: Sequence[Run]) -> dict[str, Any]:
    """S1's plot and what is expected of it, beside what was measured."""
    among, alone = _finder(runs, SORTED), _finder(runs, ALONE)
    dense = among("dense")["final"]

    def ends(label: str, look: Callable[[str], Run] = among) -> str:
        return verdict(look(label)["curve"]["grad_norm"], look("dense")["final"]["grad_norm"])

    def gap(label: str) -> float:
        return float(dense["accuracy"] - among(label)["final"]["accuracy"])

    fed = [_fed(label) for label in BIASED]
    cheaper = [label for label in fed if _bytes(among(label)) < _bytes(among("dense"))]
    slower = [label for label in fed if _steps(among(label)) > _steps(among("dense"))]
    rows = [
        ["ten label-sorted workers: without memory, biased operators stop far from the optimum",
         _held(ends(label) != "converges" for label in BIASED), _each(BIASED, ends)],
        [f"ten label-sorted workers: EF21 brings each to the dense accuracy (within {100 * CLOSE:g} points)",
         _held(gap(label) <= CLOSE for label in fed), _each(fed, lambda label: f"{0 - 100 * gap(label):+.2f}")],
        ["ten label-sorted workers: EF21 brings each to dense's gradient norm (within 10 times)",
         _held(ends(label) == "converges" for label in fed), _each(fed, ends)],
        ["HOSVD may stall even under EF21, at the true step", _held([ends("EF21(HOSVD)") != "converges"]),
         _each(("EF21(HOSVD)",), ends)],
        ["ST-HOSVD does not", _held([ends("EF21(ST-HOSVD)") == "converges"]), _each(("EF21(ST-HOSVD)",), ends)],
        ["EF21 needs a contraction: around scaled Random-k and projection (omega above 1) it diverges",
         _held(ends(label) == "diverges" for label in UNFIT), _each(UNFIT, ends)],
        [f"with EF21: more steps than dense to gradient norm {LEVEL:g} (ten label-sorted workers) ...",
         _held(label in slower for label in fed), _each(("dense", *fed), lambda label: _figure(_steps(among(label))))],
        ["... but fewer payload bytes", _held(label in cheaper for label in fed),
         _each(("dense", *fed), lambda label: _figure(_bytes(among(label))))],
        [f"one worker, EF21: SVD 1 is ahead of Top-28 (fewer bytes to gradient norm {LEVEL:g})",
         _held([_bytes(alone("EF21(SVD 1)")) < _bytes(alone("EF21(Top-28)"))]),
         _each(("EF21(SVD 1)", "EF21(Top-28)"), lambda label: _figure(_bytes(alone(label))))],
        ["one worker, EF21: HOSVD is about Top-17 (bytes within a quarter)",
         _held([abs(_bytes(alone("EF21(HOSVD)")) / _bytes(alone("EF21(Top-17)")) - 1) <= 0.25]),
         _each(("EF21(HOSVD)", "EF21(Top-17)"), lambda label: _figure(_bytes(alone(label))))],
        ["one worker, EF21: every operator has dense's rate per step (steps within a tenth)",
         _held(_steps(alone(label)) <= 1.1 * _steps(alone("dense")) for label in fed),
         _each(("dense", *fed), lambda label: _figure(_steps(alone(label))))],
    ]  # fmt: skip
    note = "A dash: never. Steps and bytes are read off curves with a point every few steps; positions are counted."
    return {"title": "S1's expectations", "note": note, "columns": ["expected", "holds", "figures"], "rows": rows}


def _fed(label: str) -> str:
    return label if label == "dense" else f"EF21({label})"


def _finder(runs: Sequence[Run], world: str) -> Callable[[str], Run]:
    by_label = {run["label"]: run for run in runs if run["group"].startswith(f"{world}, ")}
    return by_label.__getitem__


def _steps(run: Run) -> float:
    found = reaching(run)
    return math.inf if found is None else found[0]


def _bytes(run: Run) -> float:
    found = reaching(run)
    return math.inf if found is None else found[1]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value < math.inf else "–"


def _held(each: Iterable[bool]) -> str:
    """yes, no, or for how many of how many."""
    held = list(each)
    return "yes" if all(held) else f"{sum(held)} of {len(held)}" if any(held) else "no"


def _each(labels: Sequence[str], figure: Callable[[str], str]) -> str:
    return "; ".join(f"{label} {figure(label)}" for label in labels)
