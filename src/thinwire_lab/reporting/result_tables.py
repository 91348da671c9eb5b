"""Tables and figures that an experiment stores in its result, beside its runs or instead of them.

A table is {"title", "note", "columns": [text], "rows": [[text, number or None]]}. A figure is {"title", "note", "x",
"y", "curves"}; an axis is {"title", "log": bool, "unit": "bytes", "number", "percent" or "seconds"}, a curve {"label",
"x", "y"}, with "points": true for marks without a line, "steps": true for a histogram's edges (one more than there are
values) and "style": n to look like another curve. Notes may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .plots import Plot, PlotLine
from .scales import Axis, format_number, to_finite
from .tables import Cell, ReportTable

JsonObject = Mapping[str, Any]  # one table or figure, as json.load returns it


def format_cell(value: object) -> str:
    """Format one cell: whole numbers with commas, others with four digits, text unchanged, None as a dash."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return format_number(value) if isinstance(value, float) else "–" if value is None else str(value)


def find_number_columns(table: JsonObject) -> list[bool]:
    """Return for each column whether it holds numbers and is right-aligned."""
    columns = zip(*table["rows"], strict=True) if table["rows"] else ([] for _ in table["columns"])
    return [all(_is_number(value) for value in column) for column in columns]


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def build_table(table: JsonObject) -> ReportTable:
    """Return a stored table as a table of the report."""
    sides = ["number" if right else "words" for right in find_number_columns(table)]
    rows = [[_cell(value, side) for value, side in zip(row, sides, strict=True)] for row in table["rows"]]
    return ReportTable(table["title"], table.get("note", ""), list(zip(table["columns"], sides, strict=True)), rows)


def _cell(value: object, side: str) -> Cell:
    order = to_finite(value) if _is_number(value) else str(value)
    return Cell(_unbroken(format_cell(value)), order, side=side)


def _unbroken(text: str) -> str:
    """Keep short texts on one line."""
    return text.replace(" ", "\u00a0") if len(text) <= 12 else text


def build_plot(figure: JsonObject, name: str) -> Plot:
    """Return a stored figure as a plot with one choice of axes; its y axis is not capped."""
    lines = [
        PlotLine(
            curve["label"],
            curve.get("style", index),
            {"x": [to_finite(x) for x in curve["x"]], "y": [to_finite(y) for y in curve["y"]]},
            points=bool(curve.get("points", False)),
            steps=bool(curve.get("steps", False)),
        )
        for index, curve in enumerate(figure["curves"])
    ]
    return Plot(name, {"x": _axis(figure["x"])}, {"y": _axis(figure["y"])}, lines, capped=False)


def _axis(axis: JsonObject) -> Axis:
    """Titles may end in "(log scale)"; it is removed, since the chart adds it and the reader may switch."""
    return Axis(axis["title"].removesuffix(" (log scale)"), axis.get("unit", "number"), bool(axis.get("log")))
