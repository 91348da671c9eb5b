"""`thinwire operators`: every compressor and memory with its wire cost and its contract, read from the catalog."""

from __future__ import annotations

import argparse
import json

from .figures import add_json
from .parsers import SubParsers


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
    from rich.console import Console
    from rich.table import Table

    table = Table(*rows[0], show_lines=True)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)
    return 0
