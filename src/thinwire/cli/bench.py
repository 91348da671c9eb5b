"""`thinwire bench`: measure the kernels and the steps of DDP on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from .extras import requires_lab
from .json_output import add_json_option
from .parsers import SubParsers, check_network


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("bench", help="measure kernels and DDP steps on this machine", description=__doc__)
    benches = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
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
    add_json_option(kernels, "the numbers of the table")
    kernels.set_defaults(command=run_kernels)
    text = (
        "Measure a step of DDP without a hook, with torch's hooks and with thinwire, on a shaped network. Needs root."
    )
    ddp = benches.add_parser("ddp", help="a step of DDP: plain, torch's hooks, thinwire; needs root", description=text)
    ddp.add_argument(
        "--model", choices=("resnet18", "gpt"), action="append", help="model to train; may be repeated (default: both)"
    )
    ddp.add_argument(
        "--rate",
        action="append",
        metavar="RATE",
        help="rate of the links: lo, none, 1gbit, ...; may be repeated (default: lo, 1gbit and 100mbit)",
    )
    ddp.add_argument("--steps", type=int, default=60, metavar="N", help="measured steps of each method (default: 60)")
    add_json_option(ddp, "the numbers of the tables")
    ddp.add_argument(
        "--figures", type=Path, metavar="FOLDER", help="draw step time against rate into FOLDER, one SVG per model"
    )
    ddp.add_argument(
        "--no-baselines", action="store_true", help="measure only thinwire's methods and a step that sends nothing"
    )
    ddp.add_argument(
        "--trace", type=Path, metavar="FOLDER", help="write traces of thinwire's threads into FOLDER, for Perfetto"
    )
    ddp.set_defaults(command=run_ddp)


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
    rows = measure(options.mb, options.repetitions)
    title = f"copies of {options.mb:g} MB, one thread; kernels: {describe_kernels()}"
    table = Table("kernel", "kernel here", "torch expression", title=title, title_justify="left")
    for row in rows:
        table.add_row(row.kernel, f"{row.native:.2f}", f"{row.reference:.1f}")
    Console().print(table)
    if options.json is not None:
        write_json(options.json, options.mb, rows)
    return 0


@requires_lab("bench")
def run_ddp(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from thinwire_lab.bench.ddp import MODELS, TORCH_POWERSGD, TRACED_STEPS, Estimate, measure
    from thinwire_lab.bench.step_plot import draw_steps
    from thinwire_lab.bench.trace import make_chrome_trace, sum_per_step_ms

    from ..core import CompositionError

    if options.steps < 1:
        raise CompositionError(f"bench ddp: --steps must be at least 1, got {options.steps}")
    check_network(*options.rate or ())
    console, tables = Console(), []

    def interval(figure: Estimate, digits: int) -> str:
        return f"{figure.median:.{digits}f} [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"

    for model in options.model or MODELS:
        for link in options.rate or ["lo", "1gbit", "100mbit"]:
            with console.status(f"{model} at {link}") as status:
                show_progress = status.update if console.is_terminal else partial(print, file=sys.stderr, flush=True)
                measured = measure(model, link, options.steps, show_progress, not options.no_baselines)
                rows, spent = measured.rows, {k: sum_per_step_ms(v, TRACED_STEPS) for k, v in measured.pieces.items()}
            table = Table("method", "step (ms)", "of the floor", "sent (MB)", "CPU (ms)", title_justify="left")
            table.title = f"{model}, 2 workers, {link}; medians with 95 % intervals, {options.steps} steps each"
            for row in rows:
                figures = interval(row.step_ms, 0), interval(row.floors, 2)
                table.add_row(row.method, *figures, f"{row.sent_mb:.3g}", f"{row.cpu_ms:.0f}")
            console.print(table)
            if not options.no_baselines and not any(row.method == TORCH_POWERSGD for row in rows):
                console.print(f"{TORCH_POWERSGD}: not shown, because its processes were aborted")
            for method, times in spent.items():
                parts = ", ".join(f"{what} {ms:.0f}" for what, ms in times.items())
                console.print(f"{method}, milliseconds per step of a rank's threads: {parts}")
            tables.append({
                "model": model, "rate": link, "steps": options.steps, "rows": [asdict(row) for row in rows],
                "threads_ms": spent,
            })  # fmt: skip
            if options.trace is not None:
                options.trace.mkdir(parents=True, exist_ok=True)
                file = options.trace / f"trace-{model}-{link}.json"
                file.write_text(json.dumps(make_chrome_trace(measured.pieces)), encoding="utf-8")
            if options.json is not None:  # after each table, because all of them take long
                options.json.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")
        if options.figures is not None:
            options.figures.mkdir(parents=True, exist_ok=True)
            draw_steps(tables, model, options.figures / f"steps-{model}.svg")
    return 0
