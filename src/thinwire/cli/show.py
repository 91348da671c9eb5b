"""`thinwire show FOLDER`: the tables of a stored run. `thinwire compare A B`: two runs side by side.

`thinwire report FOLDER`: its page once more, and with --figures all pictures as files.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .extras import needs_laboratory
from .figures import add_json
from .parsers import SubParsers


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("show", help="show the tables of a run", description="Show the tables of a run.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of a run")
    add_json(parser, "the tables' figures")
    parser.set_defaults(command=show)
    parser = commands.add_parser("compare", help="compare two runs", description="Compare final figures of two runs.")
    parser.add_argument("folders", type=Path, nargs=2, metavar=("A", "B"), help="folders of runs")
    add_json(parser, "the table's figures")
    parser.set_defaults(command=compare)
    parser = commands.add_parser("report", help="write a run's report again", description="Write a run's report again.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of a run")
    parser.add_argument(
        "--figures", action="store_true", help="write every picture as a file, too, and its data as CSV"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to FILE, as Markdown")
    parser.add_argument("--png", action="store_true", help="with --figures: as PNG, too (extra `figures`)")
    parser.set_defaults(command=report)


def _result(path: Path) -> dict[str, Any]:
    from thinwire_lab.measuring.folder import RunFolder, RunFolderError

    folder = RunFolder.open(path)
    if not (path / "result.json").is_file():
        raise RunFolderError(f"{path} has no result yet; go on with: thinwire resume {path}")
    return folder.read("result.json")


@needs_laboratory("show")
def show(options: argparse.Namespace) -> int:
    from thinwire_lab.reporting.terminal import print_result, write_tables_json

    result = _result(options.folder)
    print_result(result)
    if options.json:
        write_tables_json(result, options.json)
    return 0


@needs_laboratory("compare")
def compare(options: argparse.Namespace) -> int:
    from thinwire_lab.measuring.folder import write_json
    from thinwire_lab.reporting.comparison import compare_results
    from thinwire_lab.reporting.result_tables import build_table
    from thinwire_lab.reporting.terminal import make_console, to_rich_table

    one, other = options.folders
    table = compare_results(_result(one), _result(other), str(one), str(other))
    make_console().print(to_rich_table(build_table(table)))
    if options.json:
        write_json(options.json, table)
    return 0


@needs_laboratory("report")
def report(options: argparse.Namespace) -> int:
    from thinwire_lab.reporting import write_figures, write_markdown, write_report
    from thinwire_lab.tables import ConfigError

    if options.png and not options.figures:
        raise ConfigError("--png: says how --figures are written; give both")
    result = _result(options.folder)
    write_report(result, options.folder / "report.html")
    print(f"Report: {options.folder / 'report.html'}  (open it in a browser)")
    if options.figures:
        written = write_figures(result, options.folder / "figures", png=options.png)
        print(f"Figures: {len(written)} files in {options.folder / 'figures'}")
    if options.markdown:
        write_markdown(result, options.markdown)
    return 0
