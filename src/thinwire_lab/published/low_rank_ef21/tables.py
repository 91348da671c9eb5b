"""Tables of low-rank-ef21: convergence, bytes, and the expectations of Rebrikov et al. (2024)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import Any

from ..importance_mushrooms.tables import round_norm

Run = dict[str, Any]  # one entry of the result's "runs"

BIASED = ("Top-17", "Top-28", "SVD 1", "randomised SVD 1", "HOSVD", "ST-HOSVD", "tensor train 1", "PowerSGD 1")
NOT_CONTRACTIVE = ("EF21(Random-22, scaled)", "EF21(projection 3, scaled)")
SORTED, ONE_WORKER = "10 label-sorted workers", "1 worker"
SERVER = "server and 10 label-sorted workers, EF21"
LEVEL = 1e-2  # gradient norm at which steps and bytes are compared
ACCURACY_MARGIN = 0.005  # half a percentage point


def classify_convergence(norms: Sequence[float | None], dense: float) -> str:
    """Classify a run by its gradient norm.

    "converges": ends within 10 times dense's; "diverges": ends above its start or not finite; "stalls": less than
    halved over the last third; else "still falling".
    """
    finite = [math.inf if norm is None else norm for norm in norms]
    last, before = finite[-1], finite[len(finite) * 2 // 3]
    if last <= 10 * dense:
        return "converges"
    if not last < finite[0]:
        return "diverges"
    return "stalls" if last > before / 2 else "still falling"


def find_first_reaching(run: Run, level: float = LEVEL) -> tuple[int, float] | None:
    """Return step and payload bytes at the first recorded gradient norm of at most `level`."""
    columns = (run["curve"][name] for name in ("step", "payload_bytes", "grad_norm"))
    return next(((s, b) for s, b, norm in zip(*columns, strict=True) if norm is not None and norm <= level), None)


def build_convergence_table(runs: Sequence[Run], labels: Sequence[str], worlds: Sequence[str]) -> dict[str, Any]:
    rows = []
    for world in worlds:
        find = _find_by_label(runs, world)
        dense = find("dense")["final"]["grad_norm"]
        for label in labels:
            cells: list[Any] = [label, world]
            for run in (find(label), find(_with_ef21(label))):
                norm, accuracy = run["final"]["grad_norm"], run["final"]["accuracy"]
                cells += [
                    classify_convergence(run["curve"]["grad_norm"], dense),
                    round_norm(norm),
                    f"{100 * accuracy:.2f} %",
                ]
            plain = find(label)
            rows.append([*cells, round(plain["final"]["payload_bytes"] / plain["curve"]["step"][-1])])
    return {
        "title": "Convergence of each compressor",
        "note": (
            "By the final gradient norm: converges (within 10 times dense's), diverges (above its start), stalls (less "
            "than halved over the last third), or still falling. Accuracy on the held-out rows."
        ),
        "columns": [
            "compressor", "workers", "without memory", "gradient norm", "accuracy",
            "with EF21", "gradient norm", "accuracy", "bytes per step",
        ],
        "rows": rows,
    }  # fmt: skip


def build_traffic_table(runs: Sequence[Run], labels: Sequence[str]) -> dict[str, Any]:
    """Return what a worker sends and receives under EF21, with all others and with a server."""
    sorted_run, rows = _find_by_label(runs, SORTED), []
    for label in labels:
        gathered, through = sorted_run(_with_ef21(label)), _server_runs(runs).get(server_label(_with_ef21(label)))
        payload = gathered["final"]["payload_bytes"] / gathered["steps"]
        cells: list[int | None] = [round(payload), *map(round, _bytes_per_step(gathered))]
        if through is not None:
            up, down = _bytes_per_step(through)
            rows.append([label, *cells, round(up), round(down), round(up + down)])
        else:
            rows.append([label, *cells, None, None, None])
    return {
        "title": "Bytes per step of one worker, ten label-sorted workers with EF21",
        "note": "Means over the run and over ranks 1 to 9, headers included. Between workers, additive payloads "
        "(dense, Random-k, the projection, PowerSGD) are all-reduced, others are sent to nine workers. The server, "
        "rank 0, answers with the dense mean.",
        "columns": [
            "compressor", "payload", "sent to workers", "received from workers", "sent to the server",
            "received from the server", "both ways",
        ],
        "rows": rows,
    }  # fmt: skip


def build_expectations_table(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the paper's results as expectations, beside what was measured."""
    sorted_run, single_run = _find_by_label(runs, SORTED), _find_by_label(runs, ONE_WORKER)
    dense = sorted_run("dense")["final"]

    def ends(label: str, find: Callable[[str], Run] = sorted_run) -> str:
        return classify_convergence(find(label)["curve"]["grad_norm"], find("dense")["final"]["grad_norm"])

    def gap(label: str) -> float:
        return float(dense["accuracy"] - sorted_run(label)["final"]["accuracy"])

    with_ef21 = [_with_ef21(label) for label in BIASED]
    through = [label for label in ("dense", *with_ef21) if server_label(label) in _server_runs(runs)]

    def sent(label: str) -> float:
        return _steps(sorted_run(label)) * _bytes_per_step(sorted_run(label))[0]

    def to_server(label: str, both: bool = False) -> float:
        run = _server_runs(runs)[server_label(label)]
        return _steps(run) * (sum(_bytes_per_step(run)) if both else _bytes_per_step(run)[0])

    def fewer(figure: Callable[[str], float], labels: Sequence[str]) -> list[str]:
        """Return two cells: for which labels a figure is below dense's, and all figures."""
        held = _judge(figure(label) < figure("dense") for label in labels if label != "dense")
        return [held, _list_figures(labels, lambda label: _format_figure(figure(label)))]

    slower = [label for label in with_ef21 if _steps(sorted_run(label)) > _steps(sorted_run("dense"))]
    rows = [
        [
            "ten label-sorted workers: without memory, biased compressors stop far from the optimum",
            _judge(ends(label) != "converges" for label in BIASED),
            _list_figures(BIASED, ends),
        ],
        [
            f"ten label-sorted workers: with EF21 each has the dense accuracy (± {100 * ACCURACY_MARGIN:g} points)",
            _judge(gap(label) <= ACCURACY_MARGIN for label in with_ef21),
            _list_figures(with_ef21, lambda label: f"{0 - 100 * gap(label):+.2f}"),
        ],
        [
            "ten label-sorted workers: with EF21 each reaches dense's gradient norm (within 10 times)",
            _judge(ends(label) == "converges" for label in with_ef21),
            _list_figures(with_ef21, ends),
        ],
        [
            "HOSVD may stall even under EF21, at step 1/L",
            _judge([ends("EF21(HOSVD)") != "converges"]),
            _list_figures(("EF21(HOSVD)",), ends),
        ],
        [
            "ST-HOSVD does not",
            _judge([ends("EF21(ST-HOSVD)") == "converges"]),
            _list_figures(("EF21(ST-HOSVD)",), ends),
        ],
        [
            "EF21 needs a contraction: with scaled Random-k and projection (omega above 1) it diverges",
            _judge(ends(label) == "diverges" for label in NOT_CONTRACTIVE),
            _list_figures(NOT_CONTRACTIVE, ends),
        ],
        [
            f"with EF21: more steps than dense to gradient norm {LEVEL:g} (ten label-sorted workers) ...",
            _judge(label in slower for label in with_ef21),
            _list_figures(("dense", *with_ef21), lambda label: _format_figure(_steps(sorted_run(label)))),
        ],
        ["... but fewer payload bytes", *fewer(lambda label: _bytes(sorted_run(label)), ("dense", *with_ef21))],
        [
            "... and fewer bytes on the wire, sent by a worker to nine others (dense: an all-reduce)",
            *fewer(sent, ("dense", *with_ef21)),
        ],
        [
            "... and fewer bytes on the wire, sent by a worker to a server, which is the paper's topology",
            *fewer(to_server, through),
        ],
        [
            "... and fewer bytes in both directions between a worker and the server (its answer is dense)",
            *fewer(lambda label: to_server(label, both=True), through),
        ],
        [
            f"one worker, EF21: SVD 1 is ahead of Top-28 (fewer bytes to gradient norm {LEVEL:g})",
            _judge([_bytes(single_run("EF21(SVD 1)")) < _bytes(single_run("EF21(Top-28)"))]),
            _list_figures(("EF21(SVD 1)", "EF21(Top-28)"), lambda label: _format_figure(_bytes(single_run(label)))),
        ],
        [
            "one worker, EF21: HOSVD is close to Top-17 (bytes within 25 %)",
            _judge([abs(_bytes(single_run("EF21(HOSVD)")) / _bytes(single_run("EF21(Top-17)")) - 1) <= 0.25]),
            _list_figures(("EF21(HOSVD)", "EF21(Top-17)"), lambda label: _format_figure(_bytes(single_run(label)))),
        ],
        [
            "one worker, EF21: every compressor converges per step like dense (steps within 10 %)",
            _judge(
                abs(_steps(single_run(label)) - _steps(single_run("dense"))) <= 0.1 * _steps(single_run("dense"))
                for label in with_ef21
            ),
            _list_figures(("dense", *with_ef21), lambda label: _format_figure(_steps(single_run(label)))),
        ],
    ]
    note = "A dash: never. Steps and bytes are taken from curves with a point every few steps; positions are included."
    return {"title": "Expected and measured", "note": note, "columns": ["expected", "holds", "figures"], "rows": rows}


def _with_ef21(label: str) -> str:
    return label if label == "dense" else f"EF21({label})"


def server_label(label: str) -> str:
    """Return the label of the form with a parameter server."""
    return f"{label}, server"


def _server_runs(runs: Sequence[Run]) -> dict[str, Run]:
    return {run["label"]: run for run in runs if run["group"] == SERVER}


def _bytes_per_step(run: Run) -> tuple[float, float]:
    """Return the bytes that a worker sends and receives per step: means over the run and over ranks 1 to n - 1."""
    traffic = run["bytes_by_rank"]
    return mean(traffic["sent"][1:]) / run["steps"], mean(traffic["received"][1:]) / run["steps"]


def _find_by_label(runs: Sequence[Run], world: str) -> Callable[[str], Run]:
    by_label = {run["label"]: run for run in runs if run["group"].startswith(f"{world}, ")}
    return by_label.__getitem__


def _steps(run: Run) -> float:
    found = find_first_reaching(run)
    return math.inf if found is None else found[0]


def _bytes(run: Run) -> float:
    found = find_first_reaching(run)
    return math.inf if found is None else found[1]


def _format_figure(value: float) -> str:
    return f"{value:,.0f}" if value < math.inf else "–"


def _judge(each: Iterable[bool]) -> str:
    """Return yes, no, or "m of n"."""
    held = list(each)
    return "yes" if all(held) else f"{sum(held)} of {len(held)}" if any(held) else "no"


def _list_figures(labels: Sequence[str], figure: Callable[[str], str]) -> str:
    return "; ".join(f"{label} {figure(label)}" for label in labels)
