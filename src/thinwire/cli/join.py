"""`thinwire join`: work for a model that `thinwire serve` holds. Task and exchange must be those of the server."""

from __future__ import annotations

import argparse
import json
import os
import re
import socket

from .parsers import SubParsers, add_service, service_of, tls_of
from .telling import now_and_then


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("join", help="work for a model that `serve` holds", description=__doc__)
    add_service(parser)
    parser.add_argument("address", help="of the server: HOST:PORT or unix:PATH")
    parser.add_argument(
        "--name", help="under which the server knows this worker; default: from the share, or host and process"
    )
    parser.add_argument("--share", type=share, metavar="I/N", help="of the data: part I of N, from 0; default all")
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="updates, or local steps in each round")
    parser.add_argument("--lr", type=float, default=0.05, help="of local steps in federated rounds; default 0.05")
    parser.add_argument(
        "--most-bad-rounds", type=int, default=10, metavar="N",
        help="stop after so many rounds (or steps) in a row with NaN; 0 never; default 10",
    )  # fmt: skip
    parser.add_argument(
        "--retry", type=float, default=30.0, metavar="S", help="how long to call a server that is away; default 30 s"
    )
    parser.add_argument(
        "--follow-restarts",
        action="store_true",
        help="go on when the server was restarted with --resume; default: stop",
    )
    parser.set_defaults(command=run)


def share(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise argparse.ArgumentTypeError(f"part I of N as I/N, with I from 0 to N - 1, got {text!r}")
    return int(found[1]), int(found[2])


def name_of(options: argparse.Namespace) -> str:
    """A share's worker that is started again takes its place again; those without one must differ."""
    if options.name or options.share is None:
        return options.name or f"{socket.gethostname()[:64]}-{os.getpid()}"
    return f"worker-{options.share[0]}"


def run(options: argparse.Namespace) -> int:
    from ..experiments.served import secret_of, work

    found = work(
        service_of(options), options.address, name_of(options), options.share or (0, 1), options.steps,
        options.lr, options.data, secret_of(options.secret_file, os.environ), tls_of(options), now_and_then(),
        options.most_bad_rounds, options.follow_restarts, options.retry,
    )  # fmt: skip
    print(json.dumps(found))
    return 0
