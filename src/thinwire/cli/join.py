"""`thinwire join`: work for a model that `thinwire serve` holds. Task and exchange must be those of the server."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from .parsers import SubParsers, add_service, learner_of, service_of
from .telling import now_and_then

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire_lab.tasks.base import Learner


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


def name_of(options: argparse.Namespace) -> str | None:
    """A share's worker that is started again takes its place again; those without one must differ."""
    return options.name or (None if options.share is None else f"worker-{options.share[0]}")


def run(options: argparse.Namespace) -> int:
    from ..api import join

    learner, examples = learner_of(options, *(options.share or (0, 1)))
    given = {name: getattr(options, name) for name in ("most_bad_rounds", "retry", "follow_restarts")}
    steps = None if options.rounds else options.steps
    worker = join(
        learner.parameters, options.address, steps=steps, examples=examples, name=name_of(options),
        **service_of(options), **given,
    )  # fmt: skip
    tell = now_and_then()
    for place in worker:
        if options.rounds:
            _train(learner, range(place * options.steps, (place + 1) * options.steps), options.lr, tell)
        else:
            for name, gradient in _gradients(learner, place, tell).items():
                learner.parameters[name].grad = gradient
    print(json.dumps(worker.report()))
    return 0


def _train(learner: Learner, steps: range, lr: float, tell: Callable[[str], None]) -> None:
    for step in steps:
        for name, gradient in _gradients(learner, step, tell).items():
            learner.parameters[name].detach().sub_(lr * gradient)


def _gradients(learner: Learner, step: int, tell: Callable[[str], None]) -> dict[str, Tensor]:
    loss, gradients = learner.gradients(step)
    tell(f"step {step + 1}, loss {loss:.3f}")
    return gradients
