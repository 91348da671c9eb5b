"""`thinwire serve`: hold a task's model for workers that come with `thinwire join`.

Other machines can reach it only with a secret (a file, or the variable THINWIRE_SECRET) or with TLS both ways.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .figures import add_json
from .parsers import SubParsers, add_service, learner_of, service_of
from .telling import now_and_then

if TYPE_CHECKING:
    from thinwire_lab.tasks.base import Learner

_LOOK_S = 0.2  # between two looks at news


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("serve", help="hold a model for workers that join", description=__doc__)
    add_service(parser)
    parser.add_argument("--address", default="127.0.0.1:0", help="HOST:PORT or unix:PATH; default: a free port here")
    parser.add_argument(
        "--workers", type=int, default=2, metavar="N", help="how many begin, or make a round; default 2"
    )
    parser.add_argument("--lr", type=float, help="of the server's SGD; default 0.05")
    parser.add_argument("--momentum", type=float, help="of the server's SGD; default 0")
    parser.add_argument(
        "--optimizer", metavar="TEXT", help="of the server instead, such as 'adam(lr=0.01)' or 'rmsprop(lr=0.01)'"
    )
    parser.add_argument("--bound", type=float, default=math.inf, help="steps ahead of the slowest; 0 in step, inf: any")
    parser.add_argument("--deadline", type=float, default=60.0, metavar="S", help="seconds to wait for one; default 60")
    parser.add_argument("--max-client-weight", type=float, default=math.inf, help="examples that count, at most")
    parser.add_argument(
        "--store", type=Path, metavar="FOLDER", help="store the state there, now and then and in the end"
    )
    parser.add_argument(
        "--store-every", type=int, metavar="N", help="updates or rounds between two; default 100 updates, or each round"
    )
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument("--resume", action="store_true", help="go on from the state that is in the folder of --store")
    begin.add_argument("--start-over", action="store_true", help="begin anew though a state is there, which is lost")
    add_json(parser, "what came of it")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from ..api import serve
    from ..core import CompositionError

    if options.optimizer is not None and (options.lr is not None or options.momentum is not None):
        raise CompositionError("--lr and --momentum are of the server's SGD; --optimizer has its own: 'sgd(lr=0.05)'")
    learner, _ = learner_of(options)
    names = ("workers", "bound", "deadline", "max_client_weight", "store", "store_every", "resume", "start_over")
    given = {name: getattr(options, name) for name in names}
    rates = {"lr": 0.05 if options.lr is None else options.lr, "momentum": options.momentum or 0.0}
    usual = "sgd(lr=1)" if options.rounds else f"sgd(lr={rates['lr']!r}, momentum={rates['momentum']!r})"
    tell = now_and_then()
    with serve(
        learner.parameters, options.optimizer or usual, options.address, **service_of(options), **given, block=False
    ) as server:
        tell(f"listening on {server.address}{_resumed(options, server.report()['updates'], learner)}")
        while not server.wait(_LOOK_S):
            tell(server.news())
    found = {**learner.measure(), **server.report()}
    print(json.dumps(found, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if "unfinished" in found:
        print(f"thinwire: {found['unfinished']}", file=sys.stderr)
        return 75
    return 0


def _resumed(options: argparse.Namespace, done: int, learner: Learner) -> str:
    if not options.resume:
        return ""
    found = ", ".join(f"{name} {value:.3f}" for name, value in learner.measure().items())
    unit = "rounds" if options.rounds else "updates"
    return f" (resumed from {options.store} after {done} {unit}: {found})"
