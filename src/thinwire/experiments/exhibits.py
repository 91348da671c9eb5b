"""Tables and figures that an experiment puts into its result beside its runs, or instead of them.

A table is {"title", "note", "columns": [text], "rows": [[text, number or None]]}. A figure is {"title", "note", "x",
"y", "curves"}; an axis is {"title", "log": bool, "unit": "bytes", "number" or "percent"}, a curve {"label", "x", "y"},
with "points": true for marks without a line and "style": n to look like another curve. Notes may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from thinwire.experiments.charts import LARGE, Curve, line_chart, swatch
from thinwire.experiments.scales import Axis, finite, format_bytes, format_number

Exhibit = Mapping[str, Any]  # one table or figure, as json.load gives it

UNITS = {
    "bytes": format_bytes,
    "number": lambda value: format_number(value, 6),
    "percent": lambda value: format_number(100 * value, 6) + " %",
}


def cell_text(value: object) -> str:
    """Write one cell: whole numbers with commas, others with four digits, text as it is, nothing as a dash."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return format_number(value) if isinstance(value, float) else "–" if value is None else str(value)


def number_columns(table: Exhibit) -> list[bool]:
    """Tell for each column whether it holds numbers and is set to the right."""
    columns = zip(*table["rows"], strict=True) if table["rows"] else ([] for _ in table["columns"])
    return [all(_is_number(value) for value in column) for column in columns]


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def table_view(table: Exhibit) -> dict[str, Any]:
    """Return what the template shows of one table."""
    sides = ["number" if right else "words" for right in number_columns(table)]
    rows = [
        [(_unbroken(cell_text(value)), side) for value, side in zip(row, sides, strict=True)] for row in table["rows"]
    ]
    columns = list(zip(table["columns"], sides, strict=True))
    return {"title": table["title"], "note": table.get("note", ""), "columns": columns, "rows": rows}


def _unbroken(text: str) -> str:
    """Short words stay on one line."""
    return text.replace(" ", "\u00a0") if len(text) <= 12 else text


def figure_view(figure: Exhibit) -> dict[str, Any]:
    """Return what the template shows of one figure: a legend and a chart."""
    curves = [_curve(curve, index) for index, curve in enumerate(figure["curves"])]
    legend = [(curve.label, Markup(swatch(curve.style, curve.points))) for curve in curves]
    chart = line_chart(curves, _axis(figure["x"]), _axis(figure["y"]), size=LARGE, capped=False)
    return {"title": figure["title"], "note": figure.get("note", ""), "legend": legend, "chart": Markup(chart)}


def _curve(curve: Exhibit, index: int) -> Curve:
    xs, ys = _finite(curve["x"]), _finite(curve["y"])
    return Curve(curve["label"], curve.get("style", index), xs, ys, curve.get("points", False))


def _finite(values: Sequence[object]) -> list[float | None]:
    return [finite(value) for value in values]


def _axis(axis: Exhibit) -> Axis:
    return Axis(axis["title"], UNITS[axis.get("unit", "number")], bool(axis.get("log")))
