"""`thinwire run NAME`: run an experiment, show a table, leave a result file and a report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..experiments.named import SUMMARIES
from .parsers import SubParsers

if TYPE_CHECKING:
    from rich.table import Table


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("run", help="run an experiment and write its report", description=__doc__)
    parser.add_argument("name", choices=list(SUMMARIES), metavar="NAME", help=f"one of {', '.join(SUMMARIES)}")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the result goes (default: runs/NAME)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table's figures to FILE, too")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from ..experiments.named import run_named
    from ..experiments.report import write_report
    from ..experiments.results import save_result
    from .progress import Bars

    folder: Path = options.out or Path("runs") / options.name
    folder.mkdir(parents=True, exist_ok=True)
    with Bars() as bars:
        result = run_named(options.name, bars, f"thinwire run {options.name}")
    save_result(result, folder / "result.json")
    write_report(result, folder / "report.html")
    print_tables(result)
    if options.json:
        head = {key: result[key] for key in ("name", "command", "checks")}
        save_result(head | {"rows": rows(result), "tables": result.get("tables", [])}, options.json)
    print(f"Result: {folder / 'result.json'}\nReport: {folder / 'report.html'}  (open it in a browser)")
    return 0 if all(check["holds"] for check in result["checks"]) else 1


def rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The table as plain figures: one row per run, without its curve."""
    left_out = ("curve", "bytes_by_kind")
    return [{key: value for key, value in run.items() if key not in left_out} for run in result.get("runs", [])]


def print_tables(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for table in result.get("tables", []):
        console.print(_exhibit(table))
    runs, target = result.get("runs", []), result.get("target_loss")
    for title in dict.fromkeys(run["group"] for run in runs):
        table = Table(title=title, title_justify="left")
        table.add_column("method", no_wrap=True)
        columns = ["loss", "accuracy", "payload bytes", "wire bytes"] + (
            [f"steps to loss {target:g}"] if target else []
        )
        for name in columns:
            table.add_column(name, justify="right")
        for run in (r for r in runs if r["group"] == title):
            table.add_row(run["label"], *_figures(run)[: len(columns)])
        console.print(table)
    for check in result["checks"]:
        console.print(
            f"{'✓' if check['holds'] else '✗'} {check['text']} ({check['detail']})", highlight=False, markup=False
        )


def _exhibit(table: dict[str, Any]) -> Table:
    """A table of the result's own; its note is in the report."""
    from rich.table import Table
    from rich.text import Text

    from ..experiments.exhibits import cell_text, number_columns

    shown = Table(title=Text(table["title"]), title_justify="left")
    for name, right in zip(table["columns"], number_columns(table), strict=True):
        shown.add_column(Text(name), justify="right" if right else "left", overflow="fold")  # no digit is cut off
    for row in table["rows"]:
        shown.add_row(*(Text(cell_text(value)) for value in row))
    return shown


def _figures(run: dict[str, Any]) -> list[str]:
    final, steps = run["final"], run["steps_to_target"]
    return [
        _number(final["loss"], ".4f"),
        _number(final["accuracy"], ".4f"),
        _number(final["payload_bytes"], ",.0f"),
        _number(final["wire_bytes"], ",.0f"),
        "–" if steps is None else str(steps),
    ]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
