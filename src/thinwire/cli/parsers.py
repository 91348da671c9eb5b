"""Options that several commands share: types, checks of the testbed's network, and the options of serve and join."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from thinwire_lab.tasks.base import Learner

    SubParsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
else:
    SubParsers = object

_MAX_MIB = 1 << 20


def int_at_least(minimum: int) -> Callable[[str], int]:
    """For `type=`: a whole number that is not below `minimum`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {minimum}, got {text!r}")
        return int(text)

    return read


def check_network(*rates: str, workers: int = 2) -> None:
    """Check --rate and --workers of the testbed. Called by commands, not by parsers: it loads the laboratory."""
    from thinwire_lab.testbed.network import MAX_WORKERS, rate_bits

    from ..core import CompositionError

    if workers > MAX_WORKERS:
        raise CompositionError(f"--workers: must be at most {MAX_WORKERS}, got {workers}")
    for rate in rates:
        try:
            rate_bits(rate)
        except ValueError as error:
            raise CompositionError(f"--rate: {error}") from None


def add_serving_options(parser: argparse.ArgumentParser) -> None:
    """The options that `serve` and `join` have in common."""
    parser.add_argument("task", metavar="TASK", help="name of the task, such as digits or cifar10 (see docs/data.md)")
    parser.add_argument(
        "--composition", default="dense()", metavar="TEXT",
        help="composition of the workers' updates; the same on both sides (default: dense())",
    )  # fmt: skip
    parser.add_argument(
        "--downlink-compression", metavar="TEXT",
        help="compressor of what the server sends; the same on both sides (default: uncompressed weights)",
    )  # fmt: skip
    parser.add_argument(
        "--rounds", type=int, default=0, metavar="N",
        help="number of federated rounds; the same on both sides (default: 0, workers send gradients)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N",
        help="seed of the initial weights and of all random choices; the same on both sides (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--data", metavar="FOLDER", help="folder of the task's data (default: $THINWIRE_DATA, then the cache)"
    )
    parser.add_argument(
        "--max-frame-mib", type=parse_mebibytes, metavar="MIB",
        help="largest message accepted, in MiB (default: 64, or what the model needs, at most 1024)",
    )  # fmt: skip
    parser.add_argument(
        "--secret-file", metavar="FILE",
        help="file with the secret that both sides share (default: $THINWIRE_SECRET, if set)",
    )  # fmt: skip
    parser.add_argument("--tls-certificate", metavar="FILE", help="PEM file with this side's TLS certificate")
    parser.add_argument("--tls-key", metavar="FILE", help="PEM file with the key of --tls-certificate")
    parser.add_argument("--tls-ca", metavar="FILE", help="PEM file with the CA that signs the other side's certificate")


def parse_mebibytes(text: str) -> int:
    """For `type=`: a number of MiB."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MAX_MIB:
        raise argparse.ArgumentTypeError(f"must be a whole number of MiB from 1 to {_MAX_MIB}, got {text!r:.40}")
    return int(text)


def serving_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments that `thinwire.serve` and `thinwire.join` have in common."""
    return {
        "task": options.task, "composition": options.composition, "downlink_compression": options.downlink_compression,
        "rounds": options.rounds, "seed": options.seed, "max_frame_mib": options.max_frame_mib,
        "secret_file": options.secret_file, "tls_certificate": options.tls_certificate, "tls_key": options.tls_key,
        "tls_ca": options.tls_ca,
    }  # fmt: skip


def make_learner(options: argparse.Namespace, rank: int = 0, size: int = 1) -> tuple[Learner, int]:
    """The task's model with one shard of its data, and the number of examples in the shard."""
    from thinwire_lab.tasks import make_task
    from thinwire_lab.tasks.splits import Split

    from ..core import shard_sizes

    task, split = make_task(options.task, {}, options.data), Split.parse("iid")
    task.prepare(size, split)
    examples = shard_sizes(int(task.describe().get("examples", size)), size)[rank]
    return task.learner(rank, size, split, options.seed), examples
