"""Tables and figures of importance-mushrooms: outcome, claims of Khafizov & Beznosikov (2024), curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]  # one method with or without Q, as experiment.run_job returns it

GREEDY = ("MD Greedy", "TopK then MD Greedy", "MD Greedy Weighted", "MD Weighted Greedy")
RANDOM = ("MD Stochastic", "SquareStochastic", "RandK, plain")
BOX = ("GD Greedy", "GD Greedy Weighted", "GD Weighted Greedy")


def build_outcome_table(found: Sequence[Row]) -> dict[str, Any]:
    """Return iterations (counted from 0), legacy bits and payload bytes to the tolerance; a dash where not reached."""
    rows = []
    for label in dict.fromkeys(row["label"] for row in found):
        q, plain = (_find_row(found, label, quantized) for quantized in (True, False))
        with_q, without = ("iterations", "legacy_bits", "payload_bytes"), ("iterations", "payload_bytes")
        cells = [*_final_values(q, with_q), round_norm(q.get("norm"))]
        rows.append([label, *cells, *_final_values(plain, without), round_norm(plain.get("norm"))])
    return {
        "title": "Cost of shrinking the gradient norm by 1e-6",
        "note": (
            "A dash: not reached within 300,000 legacy bits or 2,000 messages (with Q), 1,500 messages (without), or "
            "not run. The last norm is relative to the first. Iterations count from 0, as in the paper: 1126 are 1127 "
            "messages. Random methods have one seed; other seeds change them by a few percent."
        ),
        "columns": [
            "operator", "with Q: iterations", "legacy bits", "payload bytes", "last norm",
            "without Q: iterations", "payload bytes", "last norm",
        ],
        "rows": rows,
    }  # fmt: skip


def build_claims(found: Sequence[Row]) -> dict[str, Any]:
    """Return the paper's claims, and three questions they raise, beside what was measured with Q."""
    its = {row["label"]: row["iterations"] if row["reached"] else math.inf for row in found if row["quantized"]}
    norms = {row["label"]: row["norm"] for row in found if row["quantized"]}
    topk, randk, scaled = its["TopK"], its["RandK, plain"], its["RandK, scaled"]
    importance = (*GREEDY, "MD Stochastic")
    longer = {label: f"{label}, step 2/L" for label in BOX}
    weighted, sent = its["MD Weighted Greedy"], _find_row(found, "TopK", True)
    rows = [
        ["importance operators beat RandK as plotted in the paper (not scaled)",
         _judge(its[label] < randk for label in importance), _list_figures(its, (*importance, "RandK, plain"))],
        ["importance operators beat RandK as usually defined (scaled by d/k)",
         _judge(its[label] < scaled for label in importance), _list_figures(its, (*importance, "RandK, scaled"))],
        ["MD Weighted Greedy is close to TopK (within 5 %)", _judge([abs(weighted - topk) <= 0.05 * topk]),
         _list_figures(its, ("MD Weighted Greedy", "TopK"))],
        ["greedy importance operators need slightly fewer iterations than TopK",
         _judge(its[label] < topk for label in GREEDY), _list_figures(its, (*GREEDY, "TopK"))],
        ["random operators need more iterations than TopK",
         _judge(topk < its[label] for label in RANDOM), _list_figures(its, (*RANDOM, "TopK"))],
        ["box forms converge slowly at step 1/L (at least 1.5 times TopK's iterations)",
         _judge(its[label] > 1.5 * topk for label in BOX), _list_figures(its, BOX, norms)],
        ["box forms need a longer step: 2/L is better",
         _judge((its[longer[label]], norms[longer[label]]) < (its[label], norms[label]) for label in BOX),
         _list_figures(its, tuple(longer.values()), norms)],
        ["... which does not help TopK",
         _judge([its["TopK, step 2/L"] >= topk]), _list_figures(its, ("TopK", "TopK, step 2/L"))],
        ["the longer step of scaled RandK (d/k times 1/L) suits TopK, too",
         _judge([its["TopK, step (d/k)/L"] < math.inf]),
         _list_figures(its, ("RandK, scaled", "TopK, step (d/k)/L"), norms)],
        ["legacy bits are the bits that are sent", "no",
         f"TopK: {8 * sent['payload_bytes'] / sent['legacy_bits']:.2f} payload bits for a legacy bit "
         "(signs, positions, 8-bit exponents)"],
    ]  # fmt: skip
    note = "Iterations to 1e-6 with Q; an operator that did not reach it shows its last relative norm."
    return {
        "title": "Claims of Khafizov & Beznosikov (2024)",
        "note": note,
        "columns": ["claim", "holds", "figures"],
        "rows": rows,
    }


def build_time_table(found: Sequence[Row]) -> dict[str, Any]:
    """Return clock readings, which differ between equal runs."""
    solving = [row for row in found if row["quantized"] and row["solver_seconds"]]
    rows = [[r["label"], r["seconds"], r["solver_seconds"], r["solver_seconds"] / r["seconds"]] for r in solving]
    return {
        "title": "Time spent on solving for w, with Q",
        "note": "Measured while other runs shared the machine; it differs from run to run.",
        "columns": ["operator", "seconds", "of these in the solver", "share"],
        "rows": rows,
    }


def build_figures(found: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the relative gradient norm against legacy bits and against payload bytes."""
    views = (
        (True, "legacy_bits", "number", "legacy bits", "with Q, against legacy bits"),
        (True, "payload_bytes", "bytes", "payload bytes", "with Q, against payload bytes"),
        (False, "payload_bytes", "bytes", "payload bytes", "without Q, against payload bytes"),
    )
    styles = {label: style for style, label in enumerate(dict.fromkeys(row["label"] for row in found))}
    figures: list[dict[str, Any]] = []
    for quantized, column, unit, words, title in views:
        rows = [row for row in found if row["quantized"] == quantized]
        figures.append({
            "title": f"Relative gradient norm {title}",
            "note": "Point at a name to highlight its curve." if not figures else "",
            "x": {"title": words, "log": False, "unit": unit},
            "y": {"title": "relative gradient norm", "log": True, "unit": "number"},
            "curves": [{"label": r["label"], "style": styles[r["label"]], "x": r["curve"][column],
                        "y": r["curve"]["norm"]} for r in rows],
        })  # fmt: skip
    return figures


def round_norm(norm: float | None) -> float | None:
    """Round to two digits."""
    return None if norm is None else float(f"{norm:.2g}")


def _find_row(found: Sequence[Row], label: str, quantized: bool) -> Row:
    """Return the row of a method, or an empty one."""
    return next((row for row in found if row["label"] == label and row["quantized"] == quantized), {})


def _final_values(row: Row, names: Sequence[str]) -> list[int | None]:
    return [row[name] if row.get("reached") else None for name in names]


def _judge(each: Iterable[bool]) -> str:
    """Return yes, no, or "m of n"."""
    held = list(each)
    return "yes" if all(held) else f"{sum(held)} of {len(held)}" if any(held) else "no"


def _list_figures(its: dict[str, float], labels: Sequence[str], norms: dict[str, float] | None = None) -> str:
    def figure(label: str) -> str:
        if its[label] < math.inf:
            return f"{its[label]:,}"
        return f"at {norms[label]:.1e}" if norms else "not reached"

    return "; ".join(f"{label} {figure(label)}" for label in labels)
