"""One self-contained HTML page from one result file: tables, curves, pictures, and how to run it again.

A result may have "runs", shown by groups, and "tables" and "figures" of its own (exhibits.py), or only one of these.
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
from .exhibits import figure_plot, table_view
from .pictures import Picture, heat_picture, kind_picture, layer_picture, modelled_pictures, time_picture
from .plan_maps import plan_picture
from .plots import Plot, first_measures, group_plot, histogram_plots
from .seeds import Run, gather_groups, method_styles
from .svg import DASHES, SERIES_COLOURS, swatch
from .tables import Target, headline, modelled_groups, modelled_table, target_of


def write_report(result: Mapping[str, Any], path: Path) -> None:
    """Write the page for one result to `path`, making its folder; the page loads nothing from anywhere."""
    page = render_report(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def render_report(result: Mapping[str, Any]) -> str:
    """Return the page for one result as HTML; all text of the result is escaped."""
    groups = gather_groups(result.get("runs", []))
    styles, target, data = method_styles(groups), target_of(result), _Data()
    modelled = modelled_groups(result)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    return environment.from_string(_own("page.html.j2")).render(
        name=result["name"],
        title=result.get("title") or result["name"],
        about=result.get("about", ""),
        task=facts(result.get("task")),
        checks=result.get("checks", []),
        tables=[table_view(table) for table in result.get("tables", [])],
        figures=[_figure_view(figure, f"figure-{at}", data) for at, figure in enumerate(result.get("figures", []))],
        groups=[
            _group_view(f"group-{at}", title, members, styles, target, data)
            for at, (title, members) in enumerate(groups.items())
        ],
        modelled=[
            {
                "table": modelled_table(title, entries),
                "pictures": [data.picture(picture) for picture in modelled_pictures(f"modelled-{at}", entries)],
            }
            for at, (title, entries) in enumerate(modelled.items())
        ],
        several=any(len(runs) > 1 for members in groups.values() for runs in members.values()),
        target=target,
        command=result.get("command", ""),
        started=result.get("started", ""),
        config=json.dumps(result.get("config", {}), indent=2, ensure_ascii=False),
        versions=facts(result.get("versions")),
        machine=facts(result.get("machine")),
        style=Markup(_own("style.css")),
        script=Markup(_own("script.js")),
        data=data.embedded(),  # last: what is above has filled it
    )


def facts(given: Any) -> list[tuple[str, str]]:
    """Return a mapping, a text or nothing as pairs of words."""
    if not given:
        return []
    if not isinstance(given, Mapping):
        return [("", str(given))]
    return [(str(name).replace("_", " "), _fact(value)) for name, value in given.items() if value not in (None, "")]


def _fact(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(_fact(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_fact(item)}" for name, item in value.items())
    return str(value)


class _Data:
    """What the script needs to draw, tell and save; grows while the page is put together."""

    def __init__(self) -> None:
        self.plots: dict[str, Any] = {}
        self.pictures: dict[str, Any] = {}

    def plot(self, plot: Plot) -> str:
        self.plots[plot.name] = plot.to_json()
        return plot.name

    def picture(self, picture: Picture) -> dict[str, Any]:
        self.pictures[picture.name] = {"columns": picture.columns, "rows": picture.rows, "cells": picture.cells}
        return {"name": picture.name, "svg": Markup(picture.svg)}

    def embedded(self) -> Markup:
        look = {"colours": SERIES_COLOURS, "dashes": DASHES, "margins": [LEFT, RIGHT, TOP, BOTTOM]}
        whole = {"look": look, "plots": self.plots, "pictures": self.pictures}
        text = json.dumps(whole, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return Markup(text.replace("<", "\\u003c"))  # no text of a result can end the element it stands in


def _own(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _charts(plot: Plot, measures: Sequence[str], data: _Data, large: bool = False) -> list[dict[str, Any]]:
    """Return the charts of one plot, each starting with another measure against the first cost."""
    x = next(iter(plot.xs))
    data.plot(plot)
    return [{"plot": plot.name, "y": y, "svg": Markup(plot.svg(x, y, LARGE if large else SMALL))} for y in measures]


def _legend(plot: Plot) -> dict[str, Any]:
    entries = [(line.label, Markup(swatch(line.style, line.points))) for line in plot.lines]
    return {"plot": plot.name, "entries": entries}


def _figure_view(figure: Mapping[str, Any], name: str, data: _Data) -> dict[str, Any]:
    plot = figure_plot(figure, name)
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
    target: Target | None,
    data: _Data,
) -> dict[str, Any]:
    plot = group_plot(name, members, styles, target)
    went = [picture for picture in (time_picture(name, members), kind_picture(name, members)) if picture]
    histograms = histogram_plots(name, members, styles)
    layers = [_layers_view(f"{name}-{at}", label, runs, data) for at, (label, runs) in enumerate(members.items())]
    return {
        "table": headline(title, members, target),
        "legend": _legend(plot) if plot else None,
        "charts": _charts(plot, first_measures(plot), data) if plot else [],
        "pictures": [data.picture(picture) for picture in went],
        "histograms": [
            {"quantity": quantity, "legend": _legend(drawn), "charts": _charts(drawn, ["y"], data)}
            for quantity, drawn in histograms.items()
        ],
        "layers": [view for view in layers if view["pictures"] or view["plan"]],
        "opened": next((view["label"] for view in layers if view["lossy"]), ""),
        "traces": list(dict.fromkeys(run["trace"] for runs in members.values() for run in runs if run.get("trace"))),
    }


def _layers_view(name: str, label: str, runs: Sequence[Run], data: _Data) -> dict[str, Any]:
    found = (heat_picture(name, label, runs), plan_picture(name, label, runs), layer_picture(name, label, runs))
    plan: Mapping[str, Any] = next((run["plan"] for run in runs if run.get("plan")), {})
    errors = [value for row in (found[0].rows if found[0] else []) for value in row[2:]]
    return {
        "lossy": any(errors),  # a dense run's map is nothing to look at
        "label": label,
        "pictures": [data.picture(picture) for picture in found if picture],
        "plan": [(layer, str(choice)) for layer, choice in plan.items()],
    }
