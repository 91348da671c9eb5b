"""`thinwire verify-wire`: compare the bytes that a composition claims with those that network interfaces count."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from .extras import requires_lab
from .json_output import add_json_option
from .parsers import SubParsers, check_network, int_at_least

if TYPE_CHECKING:
    from thinwire_lab.testbed.verify import Verification


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "verify-wire", help="compare claimed bytes with those of the network interfaces", description=__doc__
    )
    parser.add_argument(
        "composition", metavar="COMPOSITION", help='composition to test, such as "ef(topk(density=0.01))"'
    )
    parser.add_argument(
        "--workers", type=int_at_least(2), default=2, metavar="N", help="number of workers (default: 2)"
    )
    parser.add_argument(
        "--numel",
        type=int_at_least(1),
        default=1_000_000,
        metavar="N",
        help="number of elements of the layer (default: 1000000)",
    )
    parser.add_argument(
        "--steps", type=int_at_least(1), default=5, metavar="N", help="number of steps that are counted (default: 5)"
    )
    add_json_option(parser, "the numbers of the table")
    parser.set_defaults(command=run)


@requires_lab("verify-wire")
def run(options: argparse.Namespace) -> int:
    """0 if all counts agree, else 1; an invalid composition raises."""
    from thinwire_lab.testbed.verify import verify

    check_network(workers=options.workers)
    found = verify(options.composition, options.workers, options.numel, options.steps)
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found.as_json(), indent=1) + "\n")
    return 0 if found.holds else 1


def show(found: Verification) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from thinwire_lab.testbed.counters import FRAME_BYTES
    from thinwire_lab.testbed.verify import LIMIT_PERCENT

    rows, columns = found.shape
    claimed = found.model_bits / (found.workers * found.steps)
    title = f"{found.composition}, {rows} x {columns} float32, {found.workers} workers, {found.steps} steps"
    table = Table(title=Text(title), title_justify="left")
    for name in ("rank", "compared", "expected B", "headers", "gloo's", "found B", "difference"):
        table.add_column(name, justify="left" if name == "compared" else "right")
    for c in found.comparisons:
        figures = (f"{c.expected_bytes:,.0f}", f"{c.headers:,.0f}", f"{c.gloo:,.0f}", f"{c.found_bytes:,.0f}")
        table.add_row(str(c.rank), c.what, *figures, f"{c.percent:+.2f} %", end_section=c.what == "received")
    Console().print(table)
    print(f"Claimed: {claimed:,.0f} bits per rank and step, {claimed / (rows * columns):.4g} per coordinate.")
    print("payload: expected are the claimed bits / 8, found are the bytes of the payloads.")
    print(
        f"sent, received: expected are the metered wire bytes and gloo's own, found are the interface's bytes without "
        f"{FRAME_BYTES} B per frame."
    )
    print(f"{'✓ All' if found.holds else '✗ Not all'} agree within {LIMIT_PERCENT:g} %.")
