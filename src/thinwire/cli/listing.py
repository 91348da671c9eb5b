"""`thinwire list`: the experiments there are."""

from __future__ import annotations

import argparse
import json

from .figures import add_json
from .parsers import SubParsers


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("list", help="list the experiments", description=__doc__)
    add_json(parser, "names and summaries")
    parser.set_defaults(command=show)


def show(options: argparse.Namespace) -> int:
    from thinwire_lab.published import SUMMARIES

    width = max(map(len, SUMMARIES))
    for name, summary in SUMMARIES.items():
        print(f"{name:<{width}}  {summary}")
    if options.json:
        options.json.write_text(json.dumps(SUMMARIES, indent=1) + "\n")
    return 0
