"""`thinwire bench ddp`: a step of DDP without a hook, with torch's hooks, with a bare hook and with thinwire."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .extras import requires_lab
from .json_output import add_json_option
from .parsers import SubParsers, check_network, int_at_least

if TYPE_CHECKING:
    from rich.table import Table

    from thinwire_lab.bench.ddp import DDPMeasurement
    from thinwire_lab.bench.ddp_methods import DDPMethod
    from thinwire_lab.bench.ddp_summary import DDPRow, Estimate

RATES = ("lo", "1gbit", "100mbit")
MINUS_BARE = (
    "minus bare hook: step minus that of the bare hook, which calls thinwire's kernels for each bucket and uses "
    "nothing else of the library; for ef(topk) that is what the library costs"
)


def add_to(benches: SubParsers) -> None:
    text = (
        "Measure a step of DDP without a hook, with torch's hooks, with a bare hook and with thinwire, on a shaped "
        "network. Needs root."
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
    ddp.add_argument(
        "--method",
        action="append",
        default=[],
        metavar="TEXT",
        help="measure only methods with TEXT in their label, and a step that sends nothing; may be repeated "
        "(default: all)",
    )
    ddp.add_argument(
        "--repeat",
        type=int_at_least(1),
        default=1,
        metavar="N",
        help="measure N times in new processes; show the median of the medians with their range (default: 1)",
    )
    add_json_option(ddp, "the numbers of the tables")
    ddp.add_argument(
        "--figures", type=Path, metavar="FOLDER", help="draw step time against rate into FOLDER, one SVG per model"
    )
    ddp.add_argument(
        "--no-baselines",
        action="store_true",
        help="measure only thinwire's methods, the bare hook and a step that sends nothing",
    )
    ddp.add_argument(
        "--trace",
        type=Path,
        metavar="FOLDER",
        help="write traces of thinwire's threads into FOLDER, for Perfetto, and a picture of one step",
    )
    ddp.set_defaults(command=run)


@requires_lab("bench")
def run(options: argparse.Namespace) -> int:
    from thinwire_lab.bench.ddp import MODELS
    from thinwire_lab.bench.ddp_methods import select_methods
    from thinwire_lab.bench.step_plot import draw_steps

    from ..core import CompositionError

    if options.steps < 1:
        raise CompositionError(f"bench ddp: --steps must be at least 1, got {options.steps}")
    check_network(*options.rate or ())
    groups = select_methods(options.method, not options.no_baselines)
    tables: list[dict[str, Any]] = []
    for model in options.model or MODELS:
        for rate in options.rate or RATES:
            tables.append(_measure_table(model, rate, groups, options))
            if options.json is not None:  # after each table, because all of them take long
                options.json.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")
        if options.figures is not None:
            options.figures.mkdir(parents=True, exist_ok=True)
            draw_steps(tables, model, options.figures / f"steps-{model}.svg")
    return 0


def _measure_table(model: str, rate: str, groups: list[list[DDPMethod]], options: argparse.Namespace) -> dict[str, Any]:
    """Measure one model at one rate, print the table and return its numbers."""
    from thinwire_lab.bench.ddp import TRACED_STEPS, measure
    from thinwire_lab.bench.ddp_bound import LEGEND
    from thinwire_lab.bench.ddp_methods import TORCH_POWERSGD
    from thinwire_lab.bench.ddp_summary import combine_runs
    from thinwire_lab.bench.trace import sum_per_step_ms
    from thinwire_lab.reporting.terminal import make_console

    console, runs = make_console(file_width=180), []
    with console.status(f"{model} at {rate}") as status:
        show = status.update if console.is_terminal else partial(print, file=sys.stderr, flush=True)
        for run in range(options.repeat):
            runs.append(measure(model, rate, options.steps, groups, _number_run(show, run, options.repeat)))
    rows = combine_runs([measured.rows for measured in runs])
    spent = {label: sum_per_step_ms(spans, TRACED_STEPS) for label, spans in runs[-1].pieces.items()}
    console.print(_make_table(rows, _make_title(model, rate, options)))
    console.print(f"{MINUS_BARE}\n{LEGEND}", highlight=False)
    if any(m.label == TORCH_POWERSGD for group in groups for m in group) and (aborted := _count_aborts(runs)):
        console.print(f"{TORCH_POWERSGD}: its processes were aborted in {aborted} of {len(runs)} runs")
    for label, times in spent.items():
        parts = ", ".join(f"{what} {ms:.0f}" for what, ms in times.items())
        console.print(f"{label}, milliseconds per step of a rank's threads: {parts}", highlight=False)
    if options.trace is not None:
        _write_trace(options.trace, model, rate, runs[-1])
    table = {"model": model, "rate": rate, "steps": options.steps, "rows": [asdict(row) for row in rows]}
    each = [[asdict(row) for row in measured.rows] for measured in runs] if len(runs) > 1 else []
    return table | {"runs": each, "threads_ms": spent}


def _number_run(show: Callable[[str], None], run: int, runs: int) -> Callable[[str], None]:
    return show if runs == 1 else lambda text: show(f"run {run + 1} of {runs}: {text}")


def _make_title(model: str, rate: str, options: argparse.Namespace) -> str:
    what = "medians with 95 % intervals"
    if options.repeat > 1:
        what = f"medians of the medians of {options.repeat} runs, with their range"
    return f"{model}, 2 workers, {rate}; {what}, {options.steps} steps each"


def _make_table(rows: list[DDPRow], title: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("method", no_wrap=True)
    for head in ("step (ms)", "of the floor", "sent (MB)", "CPU (ms)", "minus bare hook (ms)"):
        table.add_column(head)
    table.add_column("bound (of the floor, modelled)")
    for row in rows:
        compared = "" if row.minus_bare_ms is None else _show_interval(row.minus_bare_ms, 0)
        bound = "" if row.bound is None else f"{row.bound.floors:.2f}"
        figures = _show_interval(row.step_ms, 0), _show_interval(row.floors, 2), f"{row.sent_mb:.3g}"
        table.add_row(row.method, *figures, f"{row.cpu_ms:.0f}", compared, bound)
    return table


def _show_interval(figure: Estimate, digits: int) -> str:
    return f"{figure.median:.{digits}f} [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"


def _count_aborts(runs: list[DDPMeasurement]) -> int:
    from thinwire_lab.bench.ddp_methods import TORCH_POWERSGD

    return sum(all(row.method != TORCH_POWERSGD for row in measured.rows) for measured in runs)


def _write_trace(folder: Path, model: str, rate: str, measured: DDPMeasurement) -> None:
    from thinwire_lab.bench.timeline import draw_timeline
    from thinwire_lab.bench.trace import make_chrome_trace
    from thinwire_lab.reporting.svg import to_standalone

    folder.mkdir(parents=True, exist_ok=True)
    trace = json.dumps(make_chrome_trace(measured.pieces))
    (folder / f"trace-{model}-{rate}.json").write_text(trace, encoding="utf-8")
    if measured.pieces:
        picture = draw_timeline(f"One step of {model} at {rate}, rank 0 of 2", measured.pieces)
        (folder / f"timeline-{model}-{rate}.svg").write_text(to_standalone(picture), encoding="utf-8")
