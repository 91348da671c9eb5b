"""One self-contained HTML page from one result file: tables, curves, bytes by kind, and how to run it again.

A result may have "runs", shown by groups, and "tables" and "figures" of its own (exhibits.py), or only one of these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from thinwire.experiments.charts import Curve, kind_colour, line_chart, share_bar, swatch
from thinwire.experiments.exhibits import figure_view, table_view
from thinwire.experiments.scales import Axis, finite, format_bytes, format_number

Run = Mapping[str, Any]  # one entry of the result's "runs", as json.load gives it

BYTES_AXES = {
    "wire_bytes": Axis("wire bytes sent by rank 0 (log scale)", format_bytes, log=True),
    "payload_bytes": Axis("payload bytes of the one worker (log scale)", format_bytes, log=True),
}
CHARTS = {
    "loss": Axis("loss (log scale)", lambda value: format_number(value, 6), log=True),
    "grad_norm": Axis("gradient norm (log scale)", lambda value: format_number(value, 6), log=True),
    "accuracy": Axis("accuracy (%)", lambda value: format_number(100 * value, 6), log=False),
}


def write_report(result: Mapping[str, Any], path: Path) -> None:
    """Write the page for one result to `path`, making its folder; the page loads nothing from anywhere."""
    page = render_report(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def render_report(result: Mapping[str, Any]) -> str:
    """Return the page for one result as HTML; all text of the result is escaped."""
    runs: Sequence[Run] = result.get("runs", [])
    target = finite(result.get("target_loss"))
    styles = method_styles(runs)
    groups = group_runs(runs)
    figures = [figure_view(figure) for figure in result.get("figures", [])]
    views = [group_view(name, members, styles, target) for name, members in groups.items()]
    source = files("thinwire.experiments").joinpath("report.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    return environment.from_string(source).render(
        name=result["name"],
        title=result.get("title") or result["name"],
        about=result.get("about", ""),
        checks=result.get("checks", []),
        tables=[table_view(table) for table in result.get("tables", [])],
        figures=figures,
        most_curves=max((len(view["legend"]) for view in (*figures, *views)), default=0),
        target=None if target is None else format_number(target),
        groups=views,
        kinds=kinds_view(next(iter(groups.items()), ("", []))),
        command=result.get("command", ""),
        config=json.dumps(result.get("config", {}), indent=2, ensure_ascii=False),
        versions=result.get("versions", {}),
    )


def group_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs by group, groups and runs in the order of the file."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run["group"], []).append(run)
    return groups


def method_styles(runs: Sequence[Run]) -> dict[str, int]:
    """Give each label the first style that no other label of its group has; a method looks the same in all groups."""
    groups = [{run["label"] for run in group} for group in group_runs(runs).values()]
    styles: dict[str, int] = {}
    for label in dict.fromkeys(run["label"] for run in runs):
        beside = set().union(*(group for group in groups if label in group))
        taken = {styles[other] for other in beside if other in styles}
        styles[label] = next(index for index in range(len(runs)) if index not in taken)
    return styles


def dense_bytes(runs: Sequence[Run]) -> float | None:
    """Return the wire bytes of a group's dense run, or None if there is none.

    Dense is the run that says so in its composition or label; of several the shortest composition, as
    `dense` is meant rather than `local(dense, steps=8)`.
    """
    named = [run for run in runs if re.search(r"\bdense\b", f"{run['composition']} {run['label']}", re.IGNORECASE)]
    if not named:
        return None
    return finite(min(named, key=lambda run: len(run["composition"]))["final"].get("wire_bytes"))


def format_saving(dense: float | None, own: float | None) -> str:
    """Write dense bytes / own bytes, as 12.3×; a dash if either is unknown or nothing was sent."""
    if dense is None or not own:
        return "–"
    saving = dense / own
    return f"{saving:,.0f}×" if saving >= 100 else f"{saving:.3g}×"


def row_view(run: Run, dense: float | None) -> dict[str, str]:
    """Return one row of the headline table, ready to print."""
    final = {name: finite(value) for name, value in run["final"].items()}
    accuracy, payload, wire = final.get("accuracy"), final.get("payload_bytes"), final.get("wire_bytes")
    steps = finite(run.get("steps_to_target"))
    return {
        "label": run["label"],
        "composition": run["composition"],
        "dense_layers": ", ".join(run.get("dense_layers", [])),
        "loss": format_number(final.get("loss"), pad=True),
        "accuracy": "–" if accuracy is None else f"{100 * accuracy:.1f} %",
        "payload": format_bytes(payload),
        "payload_exact": "" if payload is None else f"{payload:,.0f} bytes",
        "wire": format_bytes(wire),
        "wire_exact": "" if wire is None else f"{wire:,.0f} bytes",
        "saving": format_saving(dense, wire),
        "steps": "–" if steps is None else f"{steps:,.0f}",
    }


def group_view(name: str, runs: Sequence[Run], styles: Mapping[str, int], target: float | None) -> dict[str, Any]:
    """Return what the template shows of one group: rows, legend and the three charts."""
    dense = dense_bytes(runs)
    legend = [(label, Markup(swatch(styles[label]))) for label in dict.fromkeys(run["label"] for run in runs)]
    charts = [Markup(group_chart(runs, styles, key, target if key == "loss" else None)) for key in CHARTS]
    return {"name": name, "rows": [row_view(run, dense) for run in runs], "legend": legend, "charts": charts}


def group_chart(runs: Sequence[Run], styles: Mapping[str, int], key: str, mark: float | None) -> str:
    """Draw one figure of all runs of a group against the wire bytes; a world of one has payloads only."""
    sent = "wire_bytes" if any(finite(run["final"].get("wire_bytes")) for run in runs) else "payload_bytes"
    curves = []
    for run in runs:
        xs = [finite(value) for value in run["curve"].get(sent, [])]
        ys = [finite(value) for value in run["curve"].get(key, [])]
        curves.append(Curve(run["label"], styles[run["label"]], xs, ys))
    return line_chart(curves, BYTES_AXES[sent], CHARTS[key], mark)


def kinds_view(group: tuple[str, Sequence[Run]]) -> dict[str, Any]:
    """Return what the template shows of the bytes by kind of one group; methods that sent nothing are left out."""
    name, runs = group
    sent = [(run["label"], known_bytes(run.get("bytes_by_kind", {}))) for run in runs]
    totals: dict[str, float] = {}
    for _, parts in sent:
        for kind, size in parts.items():
            totals[kind] = totals.get(kind, 0) + size
    kinds = sorted(totals, key=lambda kind: -totals[kind])  # one order for all bars, the small headers last
    rows = []
    for label, parts in sent:
        if parts:
            shares = [(kind, format_bytes(parts[kind])) for kind in kinds if kind in parts]
            total = format_bytes(sum(parts.values()))
            rows.append({"label": label, "total": total, "bar": Markup(share_bar(parts, kinds)), "parts": shares})
    return {"group": name, "rows": rows, "colours": {kind: kind_colour(kind, kinds) for kind in kinds}}


def known_bytes(parts: Mapping[str, Any]) -> dict[str, float]:
    """Return the parts that have a positive number of bytes."""
    numbers = {kind: finite(value) for kind, value in parts.items()}
    return {kind: value for kind, value in numbers.items() if value is not None and value > 0}
