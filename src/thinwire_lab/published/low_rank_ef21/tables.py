"""What E5 shows: where each operator ends, its bytes, and which expectations hold (Rebrikov et al., 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import Any

from ..importance_mushrooms.tables import round_norm

Run = dict[str, Any]  # one entry of the result's "runs"

BIASED = ("Top-17", "Top-28", "SVD 1", "randomised SVD 1", "HOSVD", "ST-HOSVD", "tensor train 1", "PowerSGD 1")
UNFIT = ("EF21(Random-22, scaled)", "EF21(projection 3, scaled)")
SORTED, ALONE = "10 label-sorted workers", "1 worker"
SERVER = "server and 10 label-sorted workers, EF21"
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
                cells += [verdict(run["curve"]["grad_norm"], dense), round_norm(norm), f"{100 * accuracy:.2f} %"]
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


def on_the_wire(runs: Sequence[Run], labels: Sequence[str]) -> dict[str, Any]:
    """What a worker sends and receives under EF21, to all others and to a server; it is not the server itself."""
    among, rows = _finder(runs, SORTED), []
    for label in labels:
        gathered, through = among(_fed(label)), _server(runs).get(served(_fed(label)))
        payload = gathered["final"]["payload_bytes"] / gathered["steps"]
        cells: list[int | None] = [round(payload), *map(round, _each_step(gathered))]
        if through is not None:
            up, down = _each_step(through)
            rows.append([label, *cells, round(up), round(down), round(up + down)])
        else:
            rows.append([label, *cells, None, None, None])
    return {
        "title": "Bytes a step of one worker, ten label-sorted workers with EF21",
        "note": "Means over the run and over ranks 1 to 9, heads included. Between workers, payloads that add up "
        "(dense, Random-k, the projection, PowerSGD) are all-reduced, others go to nine workers. The server, rank 0, "
        "answers with the dense mean.",
        "columns": [
            "operator", "payload", "sent to workers", "received from workers", "sent to the server",
            "received from the server", "both ways",
        ],
        "rows": rows,
    }  # fmt: skip


def expectations(runs: Sequence[Run]) -> dict[str, Any]:
    """The paper's plot and what is expected of it, beside what was measured."""
    among, alone = _finder(runs, SORTED), _finder(runs, ALONE)
    dense = among("dense")["final"]

    def ends(label: str, look: Callable[[str], Run] = among) -> str:
        return verdict(look(label)["curve"]["grad_norm"], look("dense")["final"]["grad_norm"])

    def gap(label: str) -> float:
        return float(dense["accuracy"] - among(label)["final"]["accuracy"])

    fed = [_fed(label) for label in BIASED]
    through = [label for label in ("dense", *fed) if served(label) in _server(runs)]

    def sent(label: str) -> float:
        return _steps(among(label)) * _each_step(among(label))[0]

    def to_server(label: str, both: bool = False) -> float:
        run = _server(runs)[served(label)]
        return _steps(run) * (sum(_each_step(run)) if both else _each_step(run)[0])

    def fewer(figure: Callable[[str], float], labels: Sequence[str]) -> list[str]:
        """Two cells: for which of these a figure is less than dense's, and all figures."""
        held = _held(figure(label) < figure("dense") for label in labels if label != "dense")
        return [held, _each(labels, lambda label: _figure(figure(label)))]

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
        ["... but fewer payload bytes", *fewer(lambda label: _bytes(among(label)), ("dense", *fed))],
        ["... and fewer bytes on the wire, sent by a worker to nine others (dense: an all-reduce)",
         *fewer(sent, ("dense", *fed))],
        ["... and fewer bytes on the wire, sent by a worker to a server, which is the paper's topology",
         *fewer(to_server, through)],
        ["... and fewer bytes both ways between a worker and the server, whose answer is dense",
         *fewer(lambda label: to_server(label, both=True), through)],
        [f"one worker, EF21: SVD 1 is ahead of Top-28 (fewer bytes to gradient norm {LEVEL:g})",
         _held([_bytes(alone("EF21(SVD 1)")) < _bytes(alone("EF21(Top-28)"))]),
         _each(("EF21(SVD 1)", "EF21(Top-28)"), lambda label: _figure(_bytes(alone(label))))],
        ["one worker, EF21: HOSVD is about Top-17 (bytes within a quarter)",
         _held([abs(_bytes(alone("EF21(HOSVD)")) / _bytes(alone("EF21(Top-17)")) - 1) <= 0.25]),
         _each(("EF21(HOSVD)", "EF21(Top-17)"), lambda label: _figure(_bytes(alone(label))))],
        ["one worker, EF21: every operator has dense's rate per step (steps within a tenth)",
         _held(abs(_steps(alone(label)) - _steps(alone("dense"))) <= 0.1 * _steps(alone("dense")) for label in fed),
         _each(("dense", *fed), lambda label: _figure(_steps(alone(label))))],
    ]  # fmt: skip
    note = "A dash: never. Steps and bytes are read off curves with a point every few steps; positions are counted."
    return {"title": "What was expected", "note": note, "columns": ["expected", "holds", "figures"], "rows": rows}


def _fed(label: str) -> str:
    return label if label == "dense" else f"EF21({label})"


def served(label: str) -> str:
    """The label of a method whose payloads go to a server."""
    return f"{label}, server"


def _server(runs: Sequence[Run]) -> dict[str, Run]:
    return {run["label"]: run for run in runs if run["group"] == SERVER}


def _each_step(run: Run) -> tuple[float, float]:
    """Bytes that a rank which is no server sends and receives in a step: means over the run and over such ranks."""
    traffic = run["bytes_by_rank"]
    return mean(traffic["sent"][1:]) / run["steps"], mean(traffic["received"][1:]) / run["steps"]


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
