"""`thinwire join`: train as a worker of a model that `thinwire serve` holds.

Task, composition, downlink compression, rounds and seed must equal those of the server.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from .parsers import SubParsers, add_serving_options, make_learner, serving_arguments
from .progress import throttled_print

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire_lab.tasks.base import Learner


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("join", help="train as a worker of a server", description=__doc__)
    add_serving_options(parser)
    parser.add_argument("address", metavar="ADDRESS", help="address of the server: HOST:PORT or unix:PATH")
    parser.add_argument(
        "--name", metavar="NAME",
        help="name of this worker; a worker that comes back under its name keeps its state on the server "
        "(default: worker-I with --shard I/N, else host name and process id)",
    )  # fmt: skip
    parser.add_argument(
        "--shard", type=parse_shard, metavar="I/N",
        help="train on shard I of N of the data, counted from 0 (default: all of the data)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=int, default=100, metavar="N",
        help="number of updates to send; with --rounds, local steps in each round (default: 100)",
    )  # fmt: skip
    parser.add_argument(
        "--lr", type=float, default=0.05, metavar="LR",
        help="learning rate of the local steps; used with --rounds only (default: 0.05)",
    )  # fmt: skip
    parser.add_argument(
        "--max-bad-rounds", type=int, default=10, metavar="N",
        help="stop after N consecutive rounds or steps with NaN or infinite values; 0: never (default: 10)",
    )  # fmt: skip
    parser.add_argument(
        "--retry-timeout", type=float, default=30.0, metavar="SECONDS",
        help="seconds to keep trying to connect to a server that does not answer (default: 30)",
    )  # fmt: skip
    parser.add_argument(
        "--follow-restarts", action="store_true",
        help="continue after the server was restarted with --resume (default: stop with an error)",
    )  # fmt: skip
    parser.set_defaults(command=run)


def parse_shard(text: str) -> tuple[int, int]:
    """For `type=`: "I/N" as (I, N)."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise argparse.ArgumentTypeError(f"must be I/N with I from 0 to N - 1, such as 0/2, got {text!r}")
    return int(match[1]), int(match[2])


def worker_name(options: argparse.Namespace) -> str | None:
    """The name by which a restarted worker is recognized: --name, else from the shard; None: host and process."""
    return options.name or (None if options.shard is None else f"worker-{options.shard[0]}")


def run(options: argparse.Namespace) -> int:
    from ..api import join

    learner, examples = make_learner(options, *(options.shard or (0, 1)))
    worker = join(
        learner.parameters, options.address, steps=None if options.rounds else options.steps, examples=examples,
        name=worker_name(options), max_bad_rounds=options.max_bad_rounds, retry_timeout_s=options.retry_timeout,
        follow_restarts=options.follow_restarts, **serving_arguments(options),
    )  # fmt: skip
    print_progress = throttled_print()
    for index in worker:  # of the round, or of the step
        if options.rounds:
            steps = range(index * options.steps, (index + 1) * options.steps)
            _train_locally(learner, steps, options.lr, print_progress)
        else:
            for name, gradient in _compute_gradients(learner, index, print_progress).items():
                learner.parameters[name].grad = gradient
    print(json.dumps(worker.report()))
    return 0


def _train_locally(learner: Learner, steps: range, lr: float, print_progress: Callable[[str], None]) -> None:
    for step in steps:
        for name, gradient in _compute_gradients(learner, step, print_progress).items():
            learner.parameters[name].detach().sub_(lr * gradient)


def _compute_gradients(learner: Learner, step: int, print_progress: Callable[[str], None]) -> dict[str, Tensor]:
    loss, gradients = learner.gradients(step)
    print_progress(f"step {step + 1}, loss {loss:.3f}")
    return gradients
