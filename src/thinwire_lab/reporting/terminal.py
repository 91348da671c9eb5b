"""A result's tables on the terminal, and the same tables as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..measuring.folder import write_json
from .tables import ReportTable
from .text_tables import cell_to_text, collect_tables, table_to_json


def print_result(result: dict[str, Any]) -> None:
    """Print all tables and checks of a result."""
    console = make_console()
    for table in collect_tables(result):
        console.print(to_rich_table(table))
    for check in result.get("checks", []):
        mark, detail = "✓" if check["holds"] else "✗", check.get("detail")
        console.print(f"{mark} {check['text']}" + (f" ({detail})" if detail else ""), highlight=False, markup=False)


def write_tables_json(result: dict[str, Any], path: Path) -> None:
    """Write the tables that `print_result` shows, and each run's figures, as JSON."""
    head = {key: result.get(key) for key in ("name", "command", "checks")}
    left_out = ("curve", "heatmap", "histograms")
    rows = [{key: value for key, value in run.items() if key not in left_out} for run in result.get("runs", [])]
    write_json(path, head | {"rows": rows, "tables": [table_to_json(table) for table in collect_tables(result)]})


def make_console(file_width: int = 120) -> Console:
    """Return a console as wide as the terminal, or `file_width` columns where the output is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=file_width)


def to_rich_table(table: ReportTable) -> Table:
    """Return a table for rich, without its note, which is in the report."""
    drawn = Table(title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, side in table.columns:
        drawn.add_column(Text(name), justify="right" if side == "number" else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell_to_text(cell)) for cell in row))
    return drawn
