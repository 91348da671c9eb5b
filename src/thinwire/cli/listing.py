"""`thinwire list`: list the named experiments with their short codes."""

from __future__ import annotations

import argparse
import json

from .json_output import add_json_option
from .parsers import SubParsers


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("list", help="list the named experiments", description=__doc__)
    add_json_option(parser, "the names and summaries")
    parser.set_defaults(command=show)


def show(options: argparse.Namespace) -> int:
    from thinwire_lab.published import ALIASES, SUMMARIES

    codes = {name: code for code, name in ALIASES.items()}
    width, code_width = max(map(len, SUMMARIES)), max(map(len, ALIASES))
    for name, summary in SUMMARIES.items():
        print(f"{name:<{width}}  {codes.get(name, ''):<{code_width}}  {summary}")
    if options.json:
        options.json.write_text(json.dumps(SUMMARIES, indent=1) + "\n")
    return 0
