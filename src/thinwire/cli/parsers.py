"""What commands share: types of options, the network they name, and what a server and its workers have alike."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from thinwire_lab.tasks.base import Learner

    SubParsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
else:
    SubParsers = object

_MOST_MIB = 1 << 20


def at_least(least: int) -> Callable[[str], int]:
    """For `type=`: a whole number from there on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"a number from {least} on is needed, got {text!r}")
        return int(text)

    return read


def check_network(*rates: str, workers: int = 2) -> None:
    """Whether the testbed can build it. Called by commands, not by parsers, because the laboratory is loaded for it."""
    from thinwire_lab.testbed.network import MOST_WORKERS, rate_bits

    from ..core import CompositionError

    if workers > MOST_WORKERS:
        raise CompositionError(f"--workers: at most {MOST_WORKERS}, got {workers}")
    for rate in rates:
        try:
            rate_bits(rate)
        except ValueError as error:
            raise CompositionError(f"--rate: {error}") from None


def add_service(parser: argparse.ArgumentParser) -> None:
    """Options that `serve` and `join` share."""
    parser.add_argument("task", help="digits, cifar10 ...: see the page on data")
    parser.add_argument(
        "--exchange", default="dense()", metavar="TEXT", help="what workers send through; default dense()"
    )
    parser.add_argument("--down", metavar="TEXT", help="a compressor for the way back; default: whole weights")
    parser.add_argument(
        "--rounds", type=int, default=0, metavar="N", help="federated rounds; default: gradients, no rounds"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first weights and all noise; default 1")
    parser.add_argument("--data", metavar="FOLDER", help="where the task's data are")
    parser.add_argument(
        "--max-frame",
        type=mebibytes,
        metavar="MIB",
        help="the longest message taken; default 64, or what a larger model needs, up to 1024",
    )
    parser.add_argument("--secret-file", metavar="FILE", help="that both sides hold; or the variable THINWIRE_SECRET")
    for name, what in (("certificate", "our certificate"), ("key", "its key"), ("ca", "whose certificates we trust")):
        parser.add_argument(f"--tls-{name}", metavar="FILE", help=f"{what}, PEM")


def mebibytes(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST_MIB:
        raise argparse.ArgumentTypeError(f"a whole number of MiB from 1 to {_MOST_MIB}, got {text!r:.40}")
    return int(text)


def service_of(options: argparse.Namespace) -> dict[str, Any]:
    """What `serve` and `join` of the library are given alike."""
    files = ("secret_file", "tls_certificate", "tls_key", "tls_ca")
    return {
        name: getattr(options, name) for name in ("task", "exchange", "down", "rounds", "seed", "max_frame", *files)
    }


def learner_of(options: argparse.Namespace, rank: int = 0, size: int = 1) -> tuple[Learner, int]:
    """The model and a share of the data of the task, and how many examples it has."""
    from thinwire_lab.tasks import make_task
    from thinwire_lab.tasks.splits import Split

    from ..core import shard_sizes

    task, split = make_task(options.task, {}, options.data), Split.parse("iid")
    task.prepare(size, split)
    examples = shard_sizes(int(task.about().get("examples", size)), size)[rank]
    return task.learner(rank, size, split, options.seed), examples
