"""`thinwire verify-wire COMPOSITION`: run it on real processes; compare the bytes it claims with those that travel."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from .extras import needs_laboratory
from .figures import add_json
from .parsers import SubParsers, at_least, check_network

if TYPE_CHECKING:
    from thinwire_lab.testbed.verify import Verified


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("verify-wire", help="compare claimed bytes with the interface's", description=__doc__)
    parser.add_argument("composition", metavar="COMPOSITION", help='for example "ef(topk(density=0.01))"')
    parser.add_argument("--workers", type=at_least(2), default=2, metavar="N", help="how many (default: 2)")
    parser.add_argument(
        "--numel", type=at_least(1), default=1_000_000, metavar="N", help="of the layer (default: 1000000)"
    )
    parser.add_argument("--steps", type=at_least(1), default=5, metavar="N", help="how many are counted (default: 5)")
    add_json(parser, "the table's figures")
    parser.set_defaults(command=run)


@needs_laboratory("verify-wire")
def run(options: argparse.Namespace) -> int:
    """0 if all counts agree, 1 if not, 2 if the composition is refused."""
    from thinwire_lab.testbed.verify import verify

    check_network(workers=options.workers)
    found = verify(options.composition, options.workers, options.numel, options.steps)
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found.as_json(), indent=1) + "\n")
    return 0 if found.holds else 1


def show(found: Verified) -> None:
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
    print(f"Claimed: {claimed:,.0f} bits a rank and step, {claimed / (rows * columns):.4g} a coordinate.")
    print("payload: claimed bits / 8, and the bytes handed over to be sent.")
    print(f"sent, received: metered wire bytes with gloo's own, and the interface's less {FRAME_BYTES} B a frame.")
    print(f"{'✓ All' if found.holds else '✗ Not all'} agree within {LIMIT_PERCENT:g} %.")
