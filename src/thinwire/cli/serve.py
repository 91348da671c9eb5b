"""`thinwire serve`: hold a task's model for workers that come with `thinwire join`.

Other machines can reach it only with a secret (a file, or the variable THINWIRE_SECRET) or with TLS both ways.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path

from .figures import add_json
from .parsers import SubParsers, add_service, service_of, tls_of
from .telling import now_and_then


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
    from ..core import CompositionError
    from ..experiments.served import Terms, secret_of, serve
    from ..experiments.stored import Storage

    if options.store is None and (options.resume or options.start_over or options.store_every is not None):
        raise CompositionError("--resume, --start-over and --store-every are about a stored state; give --store FOLDER")
    if options.optimizer is not None and (options.lr is not None or options.momentum is not None):
        raise CompositionError("--lr and --momentum are of the server's SGD; --optimizer has its own: 'sgd(lr=0.05)'")
    names = ("workers", "lr", "momentum", "bound", "deadline", "max_client_weight", "optimizer")
    terms = Terms(**{name: value for name in names if (value := getattr(options, name)) is not None})
    found = serve(
        service_of(options), terms, options.address, options.data, secret_of(options.secret_file, os.environ),
        tls_of(options), now_and_then(),
        options.store and Storage(options.store, options.store_every, options.resume, options.start_over),
    )  # fmt: skip
    print(json.dumps(found, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if "unfinished" in found:
        print(f"thinwire: {found['unfinished']}", file=sys.stderr)
        return 75
    return 0
