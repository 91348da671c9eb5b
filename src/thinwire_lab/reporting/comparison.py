"""Comparison of two results: the methods that both have run, and how their figures differ."""

from __future__ import annotations

import statistics
from typing import Any

from ..configuration.config import METRICS

Key = tuple[str, str]  # group, label


def compare_results(one: dict[str, Any], other: dict[str, Any], name: str, other_name: str) -> dict[str, Any]:
    """Return a table of final figures and bytes, means over seeds; the note lists methods that only one result has."""
    first, second = average_finals(one), average_finals(other)
    rows = []
    for key in (key for key in first if key in second):
        for metric in (*METRICS, "wire_bytes"):
            a, b = first[key].get(metric), second[key].get(metric)
            if a is not None and b is not None:
                change = None if a == 0 else f"{100 * (b / a - 1):+.2f} %"
                rows.append([*key, metric, a, b, change])
    unmatched = [f"{label} ({group})" for group, label in first.keys() ^ second.keys()]
    return {
        "title": f"{name} and {other_name}",
        "note": f"Only in one of them: {', '.join(sorted(unmatched))}" if unmatched else "",
        "columns": ["group", "method", "metric", name, other_name, "change"],
        "rows": rows,
    }


def average_finals(result: dict[str, Any]) -> dict[Key, dict[str, float]]:
    """Return means over seeds by (group, label); a metric that is not finite for one seed is left out."""
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
