"""`thinwire bench`: how fast the hot loops are here, and a DDP step with each way of sending."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from .extras import needs_laboratory
from .figures import add_json
from .parsers import SubParsers, check_network


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("bench", help="how fast the parts are on this machine", description=__doc__)
    what = parser.add_subparsers(title="what to measure", metavar="WHAT", required=True)
    kernels = what.add_parser("kernels", help="hot loops, in multiples of one memory copy; one thread, CPU time")
    kernels.add_argument("--mb", type=float, default=25.0, help="size of the tensor; default 25")
    kernels.add_argument("--repetitions", type=int, default=9, metavar="N", help="medians of so many; default 9")
    add_json(kernels, "the table's figures")
    kernels.set_defaults(command=run_kernels)
    ddp = what.add_parser("ddp", help="a step of DDP, plain, with torch's hooks and with ours; needs root")
    ddp.add_argument("--model", choices=("resnet18", "gpt"), action="append", help="may be repeated; default: both")
    ddp.add_argument(
        "--rate",
        action="append",
        help="of the links: lo, none, 1gbit ...; may be repeated; default: lo, 1gbit, 100mbit",
    )
    ddp.add_argument("--steps", type=int, default=60, metavar="N", help="of each method; default 60")
    add_json(ddp, "the tables' figures")
    ddp.add_argument("--figures", type=Path, metavar="FOLDER", help="draw step time against rate, one SVG a model")
    ddp.add_argument("--no-peers", action="store_true", help="only our own methods, beside the floor")
    ddp.add_argument("--trace", type=Path, metavar="FOLDER", help="what every thread of ours did, for Perfetto")
    ddp.set_defaults(command=run_ddp)


@needs_laboratory("bench")
def run_kernels(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from thinwire_lab.bench.kernels import measure, write

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


@needs_laboratory("bench")
def run_ddp(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from thinwire_lab.bench.ddp import MODELS, TORCH_POWERSGD, TRACED, Estimate, measure
    from thinwire_lab.bench.picture import draw_steps
    from thinwire_lab.bench.trace import make_chrome_trace, sum_per_step_ms

    from ..core import CompositionError

    if options.steps < 1:
        raise CompositionError(f"bench ddp: --steps must be at least 1, got {options.steps}")
    check_network(*options.rate or ())
    console, found = Console(), []

    def interval(figure: Estimate, digits: int) -> str:
        return f"{figure.median:.{digits}f} [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"

    for model in options.model or MODELS:
        for link in options.rate or ["lo", "1gbit", "100mbit"]:
            with console.status(f"{model} at {link}") as status:
                tell = status.update if console.is_terminal else partial(print, file=sys.stderr, flush=True)
                measured = measure(model, link, options.steps, tell, not options.no_peers)
                rows, spent = measured.rows, {k: sum_per_step_ms(v, TRACED) for k, v in measured.pieces.items()}
            table = Table("method", "step (ms)", "of the floor", "sent (MB)", "CPU (ms)", title_justify="left")
            table.title = f"{model}, 2 workers, {link}; medians with 95 % intervals, {options.steps} steps each"
            for row in rows:
                figures = interval(row.step_ms, 0), interval(row.floors, 2)
                table.add_row(row.method, *figures, f"{row.sent_mb:.3g}", f"{row.cpu_ms:.0f}")
            console.print(table)
            if not options.no_peers and not any(row.method == TORCH_POWERSGD for row in rows):
                console.print(f"{TORCH_POWERSGD}: its processes were aborted, so it has no row")
            for method, times in spent.items():
                parts = ", ".join(f"{what} {ms:.0f}" for what, ms in times.items())
                console.print(f"{method}, ms of a rank's threads in a step: {parts}")
            found.append({
                "model": model, "rate": link, "steps": options.steps, "rows": [asdict(row) for row in rows],
                "threads_ms": spent,
            })  # fmt: skip
            if options.trace is not None:
                options.trace.mkdir(parents=True, exist_ok=True)
                file = options.trace / f"trace-{model}-{link}.json"
                file.write_text(json.dumps(make_chrome_trace(measured.pieces)), encoding="utf-8")
            if options.json is not None:  # after each table, because all take long
                options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        if options.figures is not None:
            options.figures.mkdir(parents=True, exist_ok=True)
            draw_steps(found, model, options.figures / f"steps-{model}.svg")
    return 0
