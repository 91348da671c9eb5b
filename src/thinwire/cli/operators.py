"""`thinwire operators`: every compressor and memory with its wire cost and its contract, read from the catalog."""

from __future__ import annotations

import argparse
import json

from .figures import add_json
from .parsers import SubParsers
from .plain_tables import print_table


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("operators", help="list all parts with wire cost and contract", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print the table of the docs")
    add_json(parser, "the table's figures")
    parser.set_defaults(command=show)


def show(options: argparse.Namespace) -> int:
    from ..describe import operator_rows, to_markdown

    rows = operator_rows()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.markdown:
        print(to_markdown(rows))
        return 0
    print_table(list(rows[0]), [[str(cell) for cell in row.values()] for row in rows])
    return 0
