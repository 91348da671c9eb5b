"""What E1 shows: its outcome, which of S0's claims hold, and the curves. Plain functions of the rows found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]  # one operator with or without Q, as e1.on_one_process gives it

GREEDY = ("MD Greedy", "TopK then MD Greedy", "MD Greedy Weighted", "MD Weighted Greedy")
DRAWN = ("MD Stochastic", "SquareStochastic", "RandK, plain")
BOX = ("GD Greedy", "GD Greedy Weighted", "GD Weighted Greedy")


def outcome(found: Sequence[Row]) -> dict[str, Any]:
    """Iterations (counted from 0), legacy bits and payload bytes to the tolerance; a dash where it was not reached."""
    rows = []
    for label in dict.fromkeys(row["label"] for row in found):
        q, plain = (_row(found, label, quantised) for quantised in (True, False))
        with_q, without = ("iterations", "legacy_bits", "payload_bytes"), ("iterations", "payload_bytes")
        rows.append([label, *_ends(q, with_q), short(q.get("norm")), *_ends(plain, without), short(plain.get("norm"))])
    return {
        "title": "What it takes to shrink the gradient by 1e-6",
        "note": (
            "A dash: not reached within 300,000 legacy bits or 2,000 messages (with Q), 1,500 messages (without), or "
            "not run. The last norm is relative to the first. Iterations count from 0, as S0 does: 1126 are 1127 "
            "messages. Draws have one seed; other seeds move them by some percent."
        ),
        "columns": [
            "operator", "with Q: iterations", "legacy bits", "payload bytes", "last norm",
            "without Q: iterations", "payload bytes", "last norm",
        ],
        "rows": rows,
    }  # fmt: skip


def claims(found: Sequence[Row]) -> dict[str, Any]:
    """S0's claims, and three questions they raise, beside what was measured with Q."""
    its = {row["label"]: row["iterations"] if row["reached"] else math.inf for row in found if row["quantised"]}
    norms = {row["label"]: row["norm"] for row in found if row["quantised"]}
    topk, randk, scaled = its["TopK"], its["RandK, plain"], its["RandK, scaled"]
    importance = (*GREEDY, "MD Stochastic")
    longer = {label: f"{label}, step 2/L" for label in BOX}
    weighted, sent = its["MD Weighted Greedy"], _row(found, "TopK", True)
    rows = [
        ["importance operators beat RandK as S0 plots it (not scaled)",
         _verdict(its[label] < randk for label in importance), _list(its, (*importance, "RandK, plain"))],
        ["importance operators beat RandK as it is defined (scaled by d/k)",
         _verdict(its[label] < scaled for label in importance), _list(its, (*importance, "RandK, scaled"))],
        ["MD Weighted Greedy is about TopK (within 5 %)", _verdict([abs(weighted - topk) <= 0.05 * topk]),
         _list(its, ("MD Weighted Greedy", "TopK"))],
        ["greedy importance operators need somewhat fewer iterations than TopK",
         _verdict(its[label] < topk for label in GREEDY), _list(its, (*GREEDY, "TopK"))],
        ["operators that draw need more iterations than TopK",
         _verdict(topk < its[label] for label in DRAWN), _list(its, (*DRAWN, "TopK"))],
        ["box forms converge slowly at step 1/L (half as many iterations again as TopK, or more)",
         _verdict(its[label] > 1.5 * topk for label in BOX), _list(its, BOX, norms)],
        ["box forms want a longer step: 2/L is better",
         _verdict((its[longer[label]], norms[longer[label]]) < (its[label], norms[label]) for label in BOX),
         _list(its, tuple(longer.values()), norms)],
        ["... which TopK does not want",
         _verdict([its["TopK, step 2/L"] >= topk]), _list(its, ("TopK", "TopK, step 2/L"))],
        ["the longer step of scaled RandK (d/k times 1/L) would do for TopK, too",
         _verdict([its["TopK, step (d/k)/L"] < math.inf]), _list(its, ("RandK, scaled", "TopK, step (d/k)/L"), norms)],
        ["bits as S0 counts them are what travels", "no",
         f"TopK: {8 * sent['payload_bytes'] / sent['legacy_bits']:.2f} honest bits for a legacy bit "
         "(signs, positions, 8-bit exponents)"],
    ]  # fmt: skip
    note = "Iterations to 1e-6 with Q; an operator that did not get there shows its last relative norm."
    return {"title": "S0's claims", "note": note, "columns": ["claim", "holds", "figures"], "rows": rows}


def time_spent(found: Sequence[Row]) -> dict[str, Any]:
    """Clock readings, apart from all that two runs share."""
    solving = [row for row in found if row["quantised"] and row["solver_seconds"]]
    rows = [[r["label"], r["seconds"], r["solver_seconds"], r["solver_seconds"] / r["seconds"]] for r in solving]
    return {
        "title": "Time spent on finding w, with Q",
        "note": "Measured with a clock while other runs shared the machine; it differs from run to run.",
        "columns": ["operator", "seconds", "of these in the solver", "share"],
        "rows": rows,
    }


def curves(found: Sequence[Row]) -> list[dict[str, Any]]:
    """Relative gradient norm against what was sent, in S0's bits and in honest bytes."""
    shown = (
        (True, "legacy_bits", "number", "legacy bits, as S0 counts", "with Q, against S0's bits"),
        (True, "payload_bytes", "bytes", "payload bytes", "with Q, against honest bytes"),
        (False, "payload_bytes", "bytes", "payload bytes", "without Q, against honest bytes"),
    )
    styles = {label: style for style, label in enumerate(dict.fromkeys(row["label"] for row in found))}
    figures: list[dict[str, Any]] = []
    for quantised, column, unit, words, title in shown:
        rows = [row for row in found if row["quantised"] == quantised]
        figures.append({
            "title": f"Relative gradient norm {title}",
            "note": "Point at a name to see its curve alone." if not figures else "",
            "x": {"title": words, "log": False, "unit": unit},
            "y": {"title": "relative gradient norm", "log": True, "unit": "number"},
            "curves": [{"label": r["label"], "style": styles[r["label"]], "x": r["curve"][column],
                        "y": r["curve"]["norm"]} for r in rows],
        })  # fmt: skip
    return figures


def short(norm: float | None) -> float | None:
    """Two digits, which is what a norm that was stopped somewhere deserves."""
    return None if norm is None else float(f"{norm:.2g}")


def _row(found: Sequence[Row], label: str, quantised: bool) -> Row:
    """Empty if there is none."""
    return next((row for row in found if row["label"] == label and row["quantised"] == quantised), {})


def _ends(row: Row, names: Sequence[str]) -> list[int | None]:
    return [row[name] if row.get("reached") else None for name in names]


def _verdict(each: Iterable[bool]) -> str:
    """yes, no, or for how many of how many."""
    held = list(each)
    return "yes" if all(held) else f"{sum(held)} of {len(held)}" if any(held) else "no"


def _list(its: dict[str, float], labels: Sequence[str], norms: dict[str, float] | None = None) -> str:
    def figure(label: str) -> str:
        if its[label] < math.inf:
            return f"{its[label]:,}"
        return f"at {norms[label]:.1e}" if norms else "not reached"

    return "; ".join(f"{label} {figure(label)}" for label in labels)
