"""`thinwire show`, `thinwire compare` and `thinwire report`: tables and pages of stored runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .extras import requires_lab
from .json_output import add_json_option
from .parsers import SubParsers


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("show", help="print the tables of a run", description="Print the tables of a run.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of a run")
    add_json_option(parser, "the numbers of the tables")
    parser.set_defaults(command=show)
    parser = commands.add_parser(
        "compare", help="compare two runs", description="Compare the final metrics of two runs."
    )
    parser.add_argument("first", type=Path, metavar="A", help="folder of the first run")
    parser.add_argument("second", type=Path, metavar="B", help="folder of the second run, compared with the first")
    add_json_option(parser, "the numbers of the table")
    parser.set_defaults(command=compare)
    parser = commands.add_parser(
        "report", help="write the report of a run again", description="Write the HTML report of a run again."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of a run")
    parser.add_argument(
        "--figures", action="store_true", help="also write every figure as SVG and its data as CSV to FOLDER/figures"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables to FILE as Markdown")
    parser.add_argument(
        "--png", action="store_true", help="with --figures: also write PNG files (needs the extra `figures`)"
    )
    parser.set_defaults(command=report)


def _read_result(path: Path) -> dict[str, Any]:
    from thinwire_lab.measuring.folder import RunFolder, RunFolderError
    from thinwire_lab.measuring.result_format import upgrade_result

    folder = RunFolder.open(path)
    if not (path / "result.json").is_file():
        raise RunFolderError(f"{path} has no result yet; continue the run with: thinwire resume {path}")
    return upgrade_result(folder.read("result.json"))


@requires_lab("show")
def show(options: argparse.Namespace) -> int:
    from thinwire_lab.reporting.terminal import print_result, write_tables_json

    result = _read_result(options.folder)
    print_result(result)
    if options.json:
        write_tables_json(result, options.json)
    return 0


@requires_lab("compare")
def compare(options: argparse.Namespace) -> int:
    from thinwire_lab.measuring.folder import write_json
    from thinwire_lab.reporting.comparison import compare_results
    from thinwire_lab.reporting.result_tables import build_table
    from thinwire_lab.reporting.terminal import make_console, to_rich_table

    first, second = options.first, options.second
    table = compare_results(_read_result(first), _read_result(second), str(first), str(second))
    make_console().print(to_rich_table(build_table(table)))
    if options.json:
        write_json(options.json, table)
    return 0


@requires_lab("report")
def report(options: argparse.Namespace) -> int:
    from thinwire_lab.reporting import write_figures, write_markdown, write_report
    from thinwire_lab.tables import ConfigError

    if options.png and not options.figures:
        raise ConfigError("--png needs --figures: it adds PNG files to the figures")
    result = _read_result(options.folder)
    write_report(result, options.folder / "report.html")
    print(f"Report: {options.folder / 'report.html'}  (open it in a browser)")
    if options.figures:
        written = write_figures(result, options.folder / "figures", png=options.png)
        print(f"Figures: {len(written)} files in {options.folder / 'figures'}")
    if options.markdown:
        write_markdown(result, options.markdown)
    return 0
