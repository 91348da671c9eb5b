"""`thinwire bench kernels`: kernels in multiples of a memory copy."""

from __future__ import annotations

import argparse

from .extras import requires_lab
from .json_output import add_json_option
from .parsers import SubParsers


def add_to(benches: SubParsers) -> None:
    text = "Measure each kernel in multiples of the time of one memory copy: one thread, CPU time, C beside torch."
    kernels = benches.add_parser("kernels", help="kernels, in multiples of a memory copy", description=text)
    kernels.add_argument(
        "--mb", type=float, default=25.0, metavar="MB", help="size of the tensor in megabytes (default: 25)"
    )
    kernels.add_argument(
        "--repetitions",
        type=int,
        default=9,
        metavar="N",
        help="repetitions of each measurement; the median is shown (default: 9)",
    )
    kernels.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="instead, measure milliseconds of each C kernel on one thread and on N (default: copies, one thread)",
    )
    add_json_option(kernels, "the numbers of the table")
    kernels.set_defaults(command=run_kernels)


@requires_lab("bench")
def run_kernels(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from thinwire_lab.bench.kernels import measure, write_json

    from ..core import CompositionError
    from ..kernels.native import describe_kernels

    if not 0 < options.mb <= 4000 or options.repetitions < 1:
        raise CompositionError(
            f"bench kernels: --mb must be in (0, 4000] and --repetitions at least 1, got --mb {options.mb:g} and "
            f"--repetitions {options.repetitions}"
        )
    if options.threads is not None:
        return _run_threads(options)
    rows = measure(options.mb, options.repetitions)
    title = f"copies of {options.mb:g} MB, one thread; kernels: {describe_kernels()}"
    table = Table("kernel", "kernel here", "torch expression", title=title, title_justify="left")
    for row in rows:
        table.add_row(row.kernel, f"{row.native:.2f}", f"{row.reference:.1f}")
    Console().print(table)
    if options.json is not None:
        write_json(options.json, options.mb, rows)
    return 0


def _run_threads(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from thinwire_lab.bench.kernel_threads import measure_threads, write_threads_json

    from ..core import CompositionError
    from ..kernels.native import describe_kernels

    if options.threads < 2:
        raise CompositionError(f"bench kernels: --threads must be at least 2, got {options.threads}")
    rows = measure_threads(options.mb, options.threads, options.repetitions)
    title = f"milliseconds for {options.mb:g} MB; kernels: {describe_kernels()}"
    table = Table("kernel", "one thread", f"{options.threads} threads", "quotient", title=title, title_justify="left")
    for row in rows:
        table.add_row(row.kernel, f"{row.one_ms:.2f}", f"{row.several_ms:.2f}", f"{row.quotient:.2f}")
    Console().print(table)
    if options.json is not None:
        write_threads_json(options.json, options.mb, options.threads, rows)
    return 0
