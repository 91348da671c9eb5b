"""`thinwire parts`: list all parts: wire cost and contract of each compressor, capabilities of every part."""

from __future__ import annotations

import argparse
import json

from .json_output import add_json_option
from .parsers import SubParsers
from .plain_tables import print_table


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "parts", help="list all parts with wire cost, contract and capabilities", description=__doc__
    )
    parser.add_argument("--markdown", action="store_true", help="print the page docs/parts.md instead of two tables")
    add_json_option(parser, "the numbers of the tables")
    parser.set_defaults(command=show_parts)


def show_parts(options: argparse.Namespace) -> int:
    from ..describe import compressor_rows, part_rows, to_markdown

    rows = compressor_rows()
    if options.json:
        known = {row["part"]: row for row in rows}
        figures = [{**known.get(row["part"], {}), **row} for row in part_rows()]
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.markdown:
        print(to_markdown(rows))
        return 0
    for table in (rows, part_rows()):
        print_table(list(table[0]), [[str(cell) for cell in row.values()] for row in table])
        print()
    return 0
