"""`thinwire bench kernels`: how fast the hot loops are here."""

from __future__ import annotations

import argparse
from pathlib import Path

from .parsers import SubParsers


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("bench", help="how fast the parts are on this machine", description=__doc__)
    what = parser.add_subparsers(title="what to measure", metavar="WHAT", required=True)
    kernels = what.add_parser("kernels", help="hot loops, in multiples of one memory copy; one thread, CPU time")
    kernels.add_argument("--mb", type=float, default=25.0, help="size of the tensor; default 25")
    kernels.add_argument("--repetitions", type=int, default=9, metavar="N", help="medians of so many; default 9")
    kernels.add_argument("--json", type=Path, metavar="FILE", help="write the table's figures to FILE, too")
    kernels.set_defaults(command=run_kernels)


def run_kernels(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from ..bench.kernels import measure, write
    from ..core import CompositionError
    from ..kernels.native import serving

    if not 0 < options.mb <= 4000 or options.repetitions < 1:
        raise CompositionError(
            f"bench kernels: --mb must be in (0, 4000] and --repetitions at least 1, "
            f"got {options.mb} and {options.repetitions}"
        )
    rows = measure(options.mb, options.repetitions)
    title = f"copies of {options.mb:g} MB, one thread; kernels: {serving()}"
    table = Table("kernel", "kernel here", "torch expression", title=title, title_justify="left")
    for row in rows:
        table.add_row(row.kernel, f"{row.native:.2f}", f"{row.reference:.1f}")
    Console().print(table)
    if options.json is not None:
        write(options.json, options.mb, rows)
    return 0
