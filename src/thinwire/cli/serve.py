"""`thinwire serve`: hold a task's model and train it with the updates of workers that `thinwire join` it.

A server that other machines can reach needs a shared secret (--secret-file or $THINWIRE_SECRET) or mutual TLS.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .json_output import add_json_option
from .parsers import SubParsers, add_serving_options, make_learner, serving_arguments
from .progress import throttled_print

if TYPE_CHECKING:
    from thinwire_lab.tasks.base import Learner

_POLL_S = 0.2  # between two readings of the server's progress


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("serve", help="hold a model for workers that join", description=__doc__)
    add_serving_options(parser)
    parser.add_argument(
        "--address", default="127.0.0.1:0", metavar="ADDRESS",
        help="address to listen on: HOST:PORT or unix:PATH (default: a free port of 127.0.0.1)",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=int, default=2, metavar="N",
        help="number of workers that must join before training starts; with --rounds, clients per round (default: 2)",
    )  # fmt: skip
    parser.add_argument("--lr", type=float, metavar="LR", help="learning rate of the server's SGD (default: 0.05)")
    parser.add_argument("--momentum", type=float, metavar="M", help="momentum of the server's SGD (default: 0)")
    parser.add_argument(
        "--optimizer", metavar="TEXT",
        help="optimizer of the server instead of SGD, such as 'adam(lr=0.01)' or 'rmsprop(lr=0.01)'",
    )  # fmt: skip
    parser.add_argument(
        "--max-lead", type=float, default=math.inf, metavar="STEPS",
        help="steps that a worker may be ahead of the slowest one; 0: synchronous (default: inf, asynchronous)",
    )  # fmt: skip
    parser.add_argument(
        "--round-timeout", type=float, default=60.0, metavar="SECONDS",
        help="seconds to wait for a worker, or for the clients of a round (default: 60)",
    )  # fmt: skip
    parser.add_argument(
        "--max-client-weight", type=float, default=math.inf, metavar="N",
        help="largest number of examples that a federated client counts for (default: inf)",
    )  # fmt: skip
    parser.add_argument(
        "--save", type=Path, metavar="FOLDER", help="folder for the server's state (default: the state is not saved)"
    )
    parser.add_argument(
        "--save-every", type=int, metavar="N",
        help="updates or rounds between two saved states (default: 100 updates, or every round)",
    )  # fmt: skip
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument("--resume", action="store_true", help="continue from the state in the folder of --save")
    begin.add_argument("--start-over", action="store_true", help="start anew and delete the state in that folder")
    add_json_option(parser, "the final metrics and the server's report")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """0 if training was completed, 75 if workers were lost before."""
    from ..api import serve
    from ..core import CompositionError

    if options.optimizer is not None and (options.lr is not None or options.momentum is not None):
        raise CompositionError(
            "--lr and --momentum set the server's SGD and cannot be used with --optimizer; write them into its text: "
            "--optimizer 'sgd(lr=0.05, momentum=0.9)'"
        )
    learner, _ = make_learner(options)
    print_progress = throttled_print()
    with serve(
        learner.parameters, options.optimizer or _sgd_text(options), options.address, workers=options.workers,
        max_lead=options.max_lead, round_timeout_s=options.round_timeout, max_client_weight=options.max_client_weight,
        save=options.save, save_every=options.save_every, resume=options.resume, start_over=options.start_over,
        block=False, **serving_arguments(options),
    ) as server:  # fmt: skip
        print_progress(f"listening on {server.address}{_describe_resume(options, server.report()['updates'], learner)}")
        while not server.wait(_POLL_S):
            print_progress(server.status())
    result = {**learner.measure(), **server.report()}
    print(json.dumps(result, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if "unfinished" in result:
        print(f"thinwire: {result['unfinished']}", file=sys.stderr)
        return 75
    return 0


def _sgd_text(options: argparse.Namespace) -> str:
    """The server's default optimizer; with rounds FedAvg, which applies the average of the clients' changes."""
    if options.rounds:
        return "sgd(lr=1)"
    return f"sgd(lr={0.05 if options.lr is None else options.lr!r}, momentum={options.momentum or 0.0!r})"


def _describe_resume(options: argparse.Namespace, done: int, learner: Learner) -> str:
    if not options.resume:
        return ""
    metrics = ", ".join(f"{name} {value:.3f}" for name, value in learner.measure().items())
    unit = "rounds" if options.rounds else "updates"
    return f" (resumed from {options.save} after {done} {unit}: {metrics})"
