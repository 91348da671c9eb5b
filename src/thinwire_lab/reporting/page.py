"""One self-contained HTML page from one result file: tables, charts, pictures, and the command to run it again.

A result may have "runs", shown by groups, and "tables" and "figures" of its own (result_tables.py), or only some of
these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from .charts import BOTTOM, LARGE, LEFT, RIGHT, SMALL, TOP
from .pictures import Picture, draw_error_map, draw_kind_bars, draw_layer_bars, draw_modelled_bars, draw_time_bars
from .plan_map import draw_plan_map
from .plots import Plot, build_group_plot, build_histogram_plots, choose_metrics
from .result_tables import build_plot, build_table
from .seeds import Run, assign_styles, group_runs
from .svg import DASHES, SERIES_COLORS, svg_swatch
from .tables import TargetLevel, build_group_table, build_modelled_table, group_modelled, read_description, read_target


def write_report(result: Mapping[str, Any], path: Path) -> None:
    """Write the page for one result to `path`, making its folder. The page loads nothing from elsewhere."""
    page = render_report(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def render_report(result: Mapping[str, Any]) -> str:
    """Return the page for one result as HTML; all text of the result is escaped."""
    groups = group_runs(result.get("runs", []))
    styles, target, data = assign_styles(groups), read_target(result), _PageData()
    modelled = group_modelled(result)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    return environment.from_string(_read_resource("page.html.j2")).render(
        name=result["name"],
        title=result.get("title") or result["name"],
        description=read_description(result),
        task=format_facts(result.get("task")),
        checks=result.get("checks", []),
        tables=[build_table(table) for table in result.get("tables", [])],
        figures=[_figure_view(figure, f"figure-{at}", data) for at, figure in enumerate(result.get("figures", []))],
        groups=[
            _group_view(f"group-{at}", title, members, styles, target, data)
            for at, (title, members) in enumerate(groups.items())
        ],
        modelled=[
            {
                "table": build_modelled_table(title, entries),
                "pictures": [data.add_picture(picture) for picture in draw_modelled_bars(f"modelled-{at}", entries)],
            }
            for at, (title, entries) in enumerate(modelled.items())
        ],
        several=any(len(runs) > 1 for members in groups.values() for runs in members.values()),
        target=target,
        command=result.get("command", ""),
        started=result.get("started", ""),
        config=json.dumps(result.get("config", {}), indent=2, ensure_ascii=False),
        versions=format_facts(result.get("versions")),
        machine=format_facts(result.get("machine")),
        style=Markup(_read_resource("style.css")),
        script=Markup(_read_resource("script.js")),
        data=data.to_markup(),  # last: the views above have filled it
    )


def format_facts(facts: Any) -> list[tuple[str, str]]:
    """Return a mapping, a text or None as (name, value) texts."""
    if not facts:
        return []
    if not isinstance(facts, Mapping):
        return [("", str(facts))]
    return [
        (str(name).replace("_", " "), _format_fact(value)) for name, value in facts.items() if value not in (None, "")
    ]


def _format_fact(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(_format_fact(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_format_fact(item)}" for name, item in value.items())
    return str(value)


class _PageData:
    """The data that script.js draws, shows and saves; collected while the page is built."""

    def __init__(self) -> None:
        self.plots: dict[str, Any] = {}
        self.pictures: dict[str, Any] = {}

    def add_plot(self, plot: Plot) -> None:
        self.plots[plot.name] = plot.to_json()

    def add_picture(self, picture: Picture) -> dict[str, Any]:
        self.pictures[picture.name] = {"columns": picture.columns, "rows": picture.rows, "cells": picture.cells}
        return {"name": picture.name, "svg": Markup(picture.svg)}

    def to_markup(self) -> Markup:
        look = {"colors": SERIES_COLORS, "dashes": DASHES, "margins": [LEFT, RIGHT, TOP, BOTTOM]}
        content = {"look": look, "plots": self.plots, "pictures": self.pictures}
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return Markup(text.replace("<", "\\u003c"))  # so that no text of a result can close the script element


def _read_resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _charts(plot: Plot, measures: Sequence[str], data: _PageData, large: bool = False) -> list[dict[str, Any]]:
    """Return the charts of one plot, each starting with another measure against the first cost."""
    x = next(iter(plot.xs))
    data.add_plot(plot)
    return [{"plot": plot.name, "y": y, "svg": Markup(plot.svg(x, y, LARGE if large else SMALL))} for y in measures]


def _legend(plot: Plot) -> dict[str, Any]:
    entries = [(line.label, Markup(svg_swatch(line.style, line.points))) for line in plot.lines]
    return {"plot": plot.name, "entries": entries}


def _figure_view(figure: Mapping[str, Any], name: str, data: _PageData) -> dict[str, Any]:
    plot = build_plot(figure, name)
    return {
        "title": figure["title"],
        "note": figure.get("note", ""),
        "legend": _legend(plot),
        "charts": _charts(plot, ["y"], data, large=True),
    }


def _group_view(
    name: str,
    title: str,
    members: Mapping[str, Sequence[Run]],
    styles: Mapping[str, int],
    target: TargetLevel | None,
    data: _PageData,
) -> dict[str, Any]:
    plot = build_group_plot(name, members, styles, target)
    costs = [picture for picture in (draw_time_bars(name, members), draw_kind_bars(name, members)) if picture]
    histograms = build_histogram_plots(name, members, styles)
    layers = [_layers_view(f"{name}-{at}", label, runs, data) for at, (label, runs) in enumerate(members.items())]
    return {
        "table": build_group_table(title, members, target),
        "legend": _legend(plot) if plot else None,
        "charts": _charts(plot, choose_metrics(plot), data) if plot else [],
        "pictures": [data.add_picture(picture) for picture in costs],
        "histograms": [
            {"quantity": quantity, "legend": _legend(drawn), "charts": _charts(drawn, ["y"], data)}
            for quantity, drawn in histograms.items()
        ],
        "layers": [view for view in layers if view["pictures"] or view["plan"]],
        "opened": next((view["label"] for view in layers if view["lossy"]), ""),
        "traces": list(dict.fromkeys(run["trace"] for runs in members.values() for run in runs if run.get("trace"))),
    }


def _layers_view(name: str, label: str, runs: Sequence[Run], data: _PageData) -> dict[str, Any]:
    pictures = (draw_error_map(name, label, runs), draw_plan_map(name, label, runs), draw_layer_bars(name, label, runs))
    plan: Mapping[str, Any] = next((run["plan"] for run in runs if run.get("plan")), {})
    errors = [value for row in (pictures[0].rows if pictures[0] else []) for value in row[2:]]
    return {
        "lossy": any(errors),  # the map of a dense run is empty
        "label": label,
        "pictures": [data.add_picture(picture) for picture in pictures if picture],
        "plan": [(layer, str(option)) for layer, option in plan.items()],
    }
