"""A result's tables on the terminal, and the same figures as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..experiments.report.exhibits import cell_text, number_columns
from ..experiments.report.scales import format_bytes

MEASURES = {"loss": ".4f", "train_loss": ".4f", "accuracy": ".4f", "perplexity": ".2f"}


def print_result(result: dict[str, Any]) -> None:
    console = Console()
    for table in result.get("tables", []):
        console.print(exhibit(table))
    for table in run_tables(result):
        console.print(exhibit(table))
    for check in result.get("checks", []):
        mark = "✓" if check["holds"] else "✗"
        console.print(f"{mark} {check['text']} ({check['detail']})", highlight=False, markup=False)


def write_figures_of(result: dict[str, Any], path: Path) -> None:
    """The figures of all tables that `print_result` shows."""
    from ..experiments.folder import write_json

    head = {key: result.get(key) for key in ("name", "command", "checks", "modelled")}
    left_out = ("curve", "heatmap", "histograms")
    rows = [{key: value for key, value in run.items() if key not in left_out} for run in result.get("runs", [])]
    write_json(path, head | {"rows": rows, "tables": [*result.get("tables", []), *run_tables(result)]})


def run_tables(result: dict[str, Any]) -> list[dict[str, Any]]:
    """A table for each group: final figures, mean ± standard deviation over seeds."""
    runs, target = result.get("runs", []), result.get("target")
    tables = []
    for title in dict.fromkeys(run["group"] for run in runs):
        group = [run for run in runs if run["group"] == title]
        known = [name for name in MEASURES if any(name in run["final"] for run in group)]
        shown = [name for name in known if name != "train_loss" or "loss" not in known]
        columns = ["method", *shown, "payload", "wire"]
        if target:
            columns.append(f"steps to {target['measure']} {target['value']:g}")
        if any("communication" in run.get("times", {}) for run in group):
            columns.append("s a step")
        rows = []
        for label in dict.fromkeys(run["label"] for run in group):
            same = [run for run in group if run["label"] == label]
            rows.append([label, *row(same, shown, len(columns) - 1, bool(target))])
        tables.append({"title": title, "note": "", "columns": columns, "rows": rows})
    return tables


def row(same: Sequence[dict[str, Any]], shown: Sequence[str], width: int, target: bool) -> list[str]:
    cells = [spread([run["final"].get(name) for run in same], MEASURES[name]) for name in shown]
    for name in ("payload_bytes", "wire_bytes"):
        cells.append(format_bytes(statistics.fmean(run["final"][name] for run in same)))
    if target:
        cells.append(spread([run["steps_to_target"] for run in same], ".0f"))
    if len(cells) < width:
        cells.append(spread([step_seconds(run) for run in same], ".4f"))
    return cells


def step_seconds(run: dict[str, Any]) -> float | None:
    seconds = run["final"].get("seconds")
    return None if seconds is None else seconds / max(1, run["steps"])


def spread(values: Sequence[float | None], form: str) -> str:
    """Mean ± standard deviation; a dash if one of them is not there."""
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return "–"
    mean = format(statistics.fmean(known), form)
    return mean if len(known) == 1 else f"{mean} ± {format(statistics.stdev(known), form)}"


def exhibit(table: dict[str, Any]) -> Table:
    """A table of the result's own; its note is in the report."""
    shown = Table(title=Text(table["title"]), title_justify="left")
    for name, right in zip(table["columns"], number_columns(table), strict=True):
        shown.add_column(Text(name), justify="right" if right else "left", overflow="fold")  # no digit is cut off
    for cells in table["rows"]:
        shown.add_row(*(Text(cell_text(value)) for value in cells))
    return shown
