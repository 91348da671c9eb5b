"""`thinwire bench overhead`: CPU time of an exchange that is not that of kernels, per layer and per step."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from .extras import requires_lab
from .json_output import add_json_option
from .parsers import SubParsers, int_at_least

if TYPE_CHECKING:
    from thinwire_lab.bench.overhead import Cost


def add_to(benches: SubParsers) -> None:
    text = (
        "Measure the CPU time of an exchange of layers so small that kernels take no time, in lockstep and in two "
        "processes: per layer (a step of 60 layers minus a step of one, divided by 59) and per step (the rest of a "
        "step of one layer)."
    )
    help_text = "CPU time of an exchange beside that of kernels, per layer and per step"
    overhead = benches.add_parser("overhead", help=help_text, description=text)
    overhead.add_argument(
        "--steps", type=int_at_least(1), default=20, metavar="N", help="steps of each of five blocks (default: 20)"
    )
    overhead.add_argument(
        "--composition",
        action="append",
        metavar="TEXT",
        help="composition to measure; may be repeated (default: dense and six with error feedback)",
    )
    overhead.add_argument("--no-processes", action="store_true", help="measure lockstep only")
    add_json_option(overhead, "the numbers of the table")
    overhead.set_defaults(command=run)


@requires_lab("bench")
def run(options: argparse.Namespace) -> int:
    from rich.table import Table

    from thinwire_lab.bench.overhead import COMPOSITIONS, LAYERS, SIDE, measure
    from thinwire_lab.reporting.terminal import make_console

    from ..catalog import parse

    compositions = options.composition or COMPOSITIONS
    for text in compositions:
        parse(text)  # an error before anything starts
    console = make_console(file_width=180)
    with console.status("bench overhead") as status:
        show = status.update if console.is_terminal else partial(print, file=sys.stderr, flush=True)
        rows = measure(options.steps, compositions, not options.no_processes, show)
    title = f"of one rank of two; layers of {SIDE} x {SIDE}, {LAYERS} and 1 in an exchange; ms of CPU time, one thread"
    table = Table(title=title, title_justify="left")
    table.add_column("composition", no_wrap=True)
    times = ("ms per layer, processes", "ms per layer, lockstep", "ms per step, processes", "ms per step, lockstep")
    for head in (*times, "calls per layer", "calls per step"):
        table.add_column(head, justify="right")
    for row in rows:
        (layer, step), (lockstep_layer, lockstep_step) = _show(row.processes_ms), _show(row.lockstep_ms)
        calls = f"{row.calls.layer:.0f}", f"{row.calls.step:.0f}"
        table.add_row(row.composition, layer, lockstep_layer, step, lockstep_step, *calls)
    console.print(table)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 0


def _show(cost: Cost | None) -> tuple[str, str]:
    return ("", "") if cost is None else (f"{cost.layer:.4f}", f"{cost.step:.4f}")
