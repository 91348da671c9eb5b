"""`thinwire run NAME`: run an experiment, show a table, leave a result file and a report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..experiments.named import SUMMARIES
from .parsers import SubParsers


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
        save_result({key: result[key] for key in ("name", "command", "checks")} | {"rows": rows(result)}, options.json)
    print(f"Result: {folder / 'result.json'}\nReport: {folder / 'report.html'}  (open it in a browser)")
    return 0 if all(check["holds"] for check in result["checks"]) else 1


def rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The table as plain figures: one row per run, without its curve."""
    return [
        {key: value for key, value in run.items() if key not in ("curve", "bytes_by_kind")} for run in result["runs"]
    ]


def print_tables(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    target = result["target_loss"]
    for title in dict.fromkeys(run["group"] for run in result["runs"]):
        table = Table(title=title, title_justify="left")
        table.add_column("method", no_wrap=True)
        columns = ["loss", "accuracy", "payload bytes", "wire bytes"] + (
            [f"steps to loss {target:g}"] if target else []
        )
        for name in columns:
            table.add_column(name, justify="right")
        for run in (r for r in result["runs"] if r["group"] == title):
            table.add_row(run["label"], *_figures(run)[: len(columns)])
        console.print(table)
    for check in result["checks"]:
        console.print(
            f"{'✓' if check['holds'] else '✗'} {check['text']} ({check['detail']})", highlight=False, markup=False
        )


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
