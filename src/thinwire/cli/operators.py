"""`thinwire operators`: every compressor with its wire cost and its contract, and what each part can do."""

from __future__ import annotations

import argparse
import json

from .figures import add_json
from .parsers import SubParsers
from .plain_tables import print_table


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "operators", help="list all parts with wire cost, contract and capabilities", description=__doc__
    )
    parser.add_argument("--markdown", action="store_true", help="print the table of the docs")
    add_json(parser, "the table's figures")
    parser.set_defaults(command=show)


def show(options: argparse.Namespace) -> int:
    from ..describe import operator_rows, part_rows, to_markdown

    rows = operator_rows()
    if options.json:
        known = {row["part"]: row for row in rows}
        figures = [{**known.get(row["part"], {}), **row} for row in part_rows()]
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.markdown:
        print(to_markdown(rows))
        return 0
    for listed in (rows, part_rows()):
        print_table(list(listed[0]), [[str(cell) for cell in row.values()] for row in listed])
        print()
    return 0
