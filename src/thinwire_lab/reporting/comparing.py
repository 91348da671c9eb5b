"""Two results side by side: what both have run, and how the figures differ."""

from __future__ import annotations

import statistics
from typing import Any

from ..configuration.config import METRICS

Key = tuple[str, str]  # group, label


def comparison(one: dict[str, Any], other: dict[str, Any], name: str, other_name: str) -> dict[str, Any]:
    """Means over seeds of final figures and bytes; methods that only one of them has are named in the note."""
    ours, theirs = finals(one), finals(other)
    rows = []
    for key in (key for key in ours if key in theirs):
        for measure in (*METRICS, "wire_bytes"):
            a, b = ours[key].get(measure), theirs[key].get(measure)
            if a is not None and b is not None:
                change = None if a == 0 else f"{100 * (b / a - 1):+.2f} %"
                rows.append([*key, measure, a, b, change])
    alone = [f"{label} ({group})" for group, label in ours.keys() ^ theirs.keys()]
    return {
        "title": f"{name} and {other_name}",
        "note": f"Only in one of them: {', '.join(sorted(alone))}" if alone else "",
        "columns": ["group", "method", "measure", name, other_name, "change"],
        "rows": rows,
    }


def finals(result: dict[str, Any]) -> dict[Key, dict[str, float]]:
    """Means over seeds; a measure that is not finite for one seed is left out."""
    seeds: dict[Key, list[dict[str, Any]]] = {}
    for run in result.get("runs", []):
        seeds.setdefault((run["group"], run["label"]), []).append(run["final"])
    return {
        key: {
            name: statistics.fmean(final[name] for final in all_)
            for name in all_[0]
            if all(final.get(name) is not None for final in all_)
        }
        for key, all_ in seeds.items()
    }
