"""`thinwire list`: the experiments there are."""

from __future__ import annotations

import argparse

from ..experiments.named import SUMMARIES
from .parsers import SubParsers


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("list", help="list the experiments", description=__doc__)
    parser.set_defaults(command=show)


def show(options: argparse.Namespace) -> int:
    width = max(map(len, SUMMARIES))
    for name, summary in SUMMARIES.items():
        print(f"{name:<{width}}  {summary}")
    return 0
