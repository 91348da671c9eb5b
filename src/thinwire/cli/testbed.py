"""`thinwire testbed`: a network of workers on this machine with links of a given rate (Linux, needs root)."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .extras import requires_lab
from .json_output import add_json_option
from .parsers import SubParsers, check_network, int_at_least

if TYPE_CHECKING:
    from thinwire_lab.testbed.counters import Counts
    from thinwire_lab.testbed.launch import LaunchResult
    from thinwire_lab.testbed.network import Network

_NEEDS_ROOT = (
    "{}; use sudo, or --loopback: plain processes over this machine's loopback, without shaping and byte counts"
)


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("testbed", help="run a command on a shaped network of workers", description=__doc__)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    running = verbs.add_parser(
        "run", help="run a command on every worker",
        description="Run a command on every worker, with the environment variables that torchrun sets.",
        usage="thinwire testbed run [--workers N] [--rate RATE] [--loopback] [--json FILE] -- COMMAND ...",
    )  # fmt: skip
    _network_options(running)
    running.add_argument(
        "--loopback",
        action="store_true",
        help="run plain processes over the loopback; needs no root, links are not shaped",
    )
    running.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="command that each worker runs"
    )
    running.set_defaults(command=run_workers)
    checking = verbs.add_parser(
        "check", help="measure whether links have their rate", description="Measure whether the links have their rate."
    )
    _network_options(checking)
    checking.set_defaults(command=measure_goodput)


def _network_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers", type=int_at_least(1), default=2, metavar="N", help="number of workers (default: 2)"
    )
    parser.add_argument(
        "--rate", default="none", metavar="RATE",
        help="rate of each worker's link in either direction, such as 100mbit; lo: all workers on one host "
        "(default: none, not shaped)",
    )  # fmt: skip
    add_json_option(parser, "the numbers of the table")


@requires_lab("testbed")
def run_workers(options: argparse.Namespace) -> int:
    """Returns the exit code of the first worker that failed, else 0."""
    from thinwire_lab.testbed.launch import run_workers as run_workers
    from thinwire_lab.testbed.network import check_requirements, loopback_network, network

    check_network(options.rate, workers=options.workers)
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not words:
        print(
            "thinwire: testbed run: no command given; example: thinwire testbed run -- python train.py", file=sys.stderr
        )
        return 2
    if options.loopback and options.rate != "none":
        print(
            f"thinwire: --loopback is not shaped and cannot have --rate {options.rate}; leave one of them out",
            file=sys.stderr,
        )
        return 2
    if not options.loopback:
        try:
            check_requirements()
        except OSError as error:
            print(f"thinwire: {_NEEDS_ROOT.format(error)}", file=sys.stderr)
            return 2
    before = signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # so that workers are ended by SIGTERM first
    try:
        with loopback_network(options.workers) if options.loopback else network(options.workers, options.rate) as net:
            outcome = run_workers(net, words)
            print_outcome(net, outcome)
    finally:
        signal.signal(signal.SIGTERM, before)
    if options.json:
        figures = {"command": words, "workers": options.workers, "rate": net.rate, "shaped": net.is_shaped}
        options.json.write_text(json.dumps(figures | outcome_rows(outcome), indent=1) + "\n")
    return outcome.exit_code


def outcome_rows(outcome: LaunchResult) -> dict[str, Any]:
    def plain(counts: Counts | None) -> dict[str, int] | None:
        return None if counts is None else counts._asdict()

    ended = [asdict(worker) | {"counts": plain(worker.counts)} for worker in outcome.workers]
    head = {"exit_code": outcome.exit_code, "seconds": outcome.seconds, "total": plain(outcome.total)}
    return head | {"ended": ended}


def print_outcome(net: Network, outcome: LaunchResult) -> None:
    """Print on stderr, as `time` does: stdout belongs to the command."""
    from rich.console import Console
    from rich.table import Table

    link = f"links of {net.rate}" if net.is_shaped else "links not shaped"
    table = Table(title=f"{len(net.hosts)} workers, {link}, {outcome.seconds:.2f} s", title_justify="left")
    for name in ("rank", "exit code", "seconds", "bytes sent", "bytes received"):
        table.add_column(name, justify="right")
    for worker in outcome.workers:
        table.add_row(str(worker.rank), str(worker.exit_code), f"{worker.seconds:.2f}", *_bytes(worker.counts))
    if len(outcome.workers) > 1 and outcome.total:
        table.add_row("all", "", "", *_bytes(outcome.total), end_section=True)
    console = Console(stderr=True)
    console.print(table)
    if not net.is_counted:
        console.print("Bytes are not counted: other programs use this machine's loopback as well.")
    elif not net.is_shaped and net.hosts[0].device == "lo":
        console.print("All workers share one loopback: every byte counts as sent and as received.")


def _bytes(counts: Counts | None) -> tuple[str, str]:
    return ("–", "–") if counts is None else (f"{counts.sent_bytes:,}", f"{counts.received_bytes:,}")


@requires_lab("testbed")
def measure_goodput(options: argparse.Namespace) -> int:
    """0 if the rate is held or there is none, else 1."""
    from rich.console import Console
    from rich.table import Table

    from thinwire_lab.testbed.goodput import measure_goodput as measure
    from thinwire_lab.testbed.network import burst_bytes, network, rate_bits

    check_network(options.rate, workers=options.workers)
    with network(options.workers, options.rate) as net:
        rows = measure(net)
    bits = rate_bits(options.rate)
    shape = "not shaped" if bits is None else f"{options.rate}, burst {burst_bytes(bits):,} B"
    table = Table(title=f"{options.workers} workers in a ring, {shape}: TCP goodput", title_justify="left")
    for name in ("message", "bytes", "slowest Mbit/s", "fastest Mbit/s", "share of the rate", "obeyed"):
        table.add_column(name, justify="right")
    for row in rows:
        slow, fast = row.slowest_bits_per_s, row.fastest_bits_per_s
        share = "–" if bits is None else f"{slow / bits:.2f} to {fast / bits:.2f}"
        obeyed = "–" if row.obeyed is None else "yes" if row.obeyed else "no"
        table.add_row(row.message, f"{row.num_bytes:,}", f"{slow / 1e6:,.1f}", f"{fast / 1e6:,.1f}", share, obeyed)
    console = Console()
    console.print(table)
    good = all(row.obeyed is not False for row in rows)
    if not good:
        console.print(
            "✗ The links do not have their rate (0.95 is the best possible, because of frame headers). "
            "The machine may be too slow or too busy."
        )
    if options.json:
        figures = {"workers": options.workers, "rate": options.rate, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(figures | {"obeyed": good}, indent=1) + "\n")
    return 0 if good else 1
