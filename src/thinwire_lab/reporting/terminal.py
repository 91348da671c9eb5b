"""A result's tables on the terminal, and the same figures as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..measuring.folder import write_json
from . import tables as report_tables
from .words import all_tables, as_json, cell_words


def print_result(result: dict[str, Any]) -> None:
    console = wide_console()
    for table in all_tables(result):
        console.print(shown(table))
    for check in result.get("checks", []):
        mark, detail = "✓" if check["holds"] else "✗", check.get("detail")
        console.print(f"{mark} {check['text']}" + (f" ({detail})" if detail else ""), highlight=False, markup=False)


def write_figures_of(result: dict[str, Any], path: Path) -> None:
    """The figures of all tables that `print_result` shows."""
    head = {key: result.get(key) for key in ("name", "command", "checks")}
    left_out = ("curve", "heatmap", "histograms")
    rows = [{key: value for key, value in run.items() if key not in left_out} for run in result.get("runs", [])]
    write_json(path, head | {"rows": rows, "tables": [as_json(table) for table in all_tables(result)]})


def wide_console() -> Console:
    """As wide as the terminal; elsewhere wide enough for a table, and narrower lines are no use to anybody."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def shown(table: report_tables.Table) -> Table:
    """Its note is in the report."""
    drawn = Table(title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, side in table.columns:
        drawn.add_column(Text(name), justify="right" if side == "number" else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell_words(cell)) for cell in row))
    return drawn
