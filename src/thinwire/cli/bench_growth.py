"""`thinwire bench growth`: time, memory and link use of an exchange as parameters and workers are added."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

from .extras import requires_lab
from .json_output import add_json_option
from .parsers import SubParsers, check_network, int_at_least

if TYPE_CHECKING:
    from rich.table import Table

    from thinwire_lab.bench.growth import GrowthPlan
    from thinwire_lab.bench.growth_sizes import SizeRow
    from thinwire_lab.bench.growth_workers import WorkersRow

MAX_MILLIONS = 4000
SIZES_LEGEND = (
    "overhead: step minus the transfer of as many bytes by gloo alone, per megabyte of gradients; of the first: "
    "divided by that of the composition's first row. states, in flight: in multiples of the gradients; in flight is "
    "peak memory minus gradients and states. new memory: pages that a step got from the system"
)
WORKERS_LEGEND = (
    "time: from the first bucket to the last average, computation is a sleep. link use: data / rate / time; frames and "
    "acknowledgments take about 0.05. CPU: of one worker; all workers and the shaped network share the cores. By the "
    "formula (modelled): n - 1 payloads of a gather, 2 (n - 1) / n of two_hop"
)


def add_to(benches: SubParsers) -> None:
    text = (
        "Measure the exchange of random gradients, without a model: time and memory of two workers by number of "
        "parameters, then bytes, time and link use by number of workers on a shaped network. The second needs root."
    )
    growth = benches.add_parser(
        "growth", help="time, memory and link use by number of parameters and workers", description=text
    )
    growth.add_argument(
        "--millions", type=int_at_least(1), action="append", metavar="N",
        help="millions of parameters of two workers; may be repeated (default: 10, 30, 100 and 250)",
    )  # fmt: skip
    growth.add_argument(
        "--workers", type=int_at_least(2), action="append", metavar="N",
        help="number of workers on the shaped network; may be repeated (default: 4 and 8)",
    )  # fmt: skip
    growth.add_argument("--rate", metavar="RATE", help="rate of the shaped links (default: 100mbit)")
    growth.add_argument(
        "--steps", type=int_at_least(1), metavar="N", help="measured steps of each row (default: 5)"
    )  # fmt: skip
    growth.add_argument("--only", choices=("sizes", "workers"), help="measure only this table (default: both)")
    growth.add_argument("--quick", action="store_true", help="few parameters, 3 workers, 1 step, 1gbit: a trial run")
    add_json_option(growth, "the numbers of the tables")
    growth.set_defaults(command=run)


@requires_lab("bench")
def run(options: argparse.Namespace) -> int:
    from thinwire_lab.bench.growth import measure_sizes, measure_workers
    from thinwire_lab.reporting.terminal import make_console
    from thinwire_lab.testbed.network import check_requirements

    plan = _make_plan(options)
    if options.only != "sizes":
        check_requirements()  # an error before anything starts
    console, figures = make_console(file_width=180), {}
    with console.status("bench growth") as status:
        show = status.update if console.is_terminal else partial(print, file=sys.stderr, flush=True)
        if options.only != "workers":
            sizes, left_out = measure_sizes(plan, show)
            console.print(_make_sizes_table(sizes, plan.steps), SIZES_LEGEND, *left_out, sep="\n", highlight=False)
            figures["sizes"] = [asdict(row) for row in sizes]
        if options.only != "sizes":
            workers = measure_workers(plan, show)
            console.print(_make_workers_table(workers, plan), WORKERS_LEGEND, sep="\n", highlight=False)
            figures["workers"] = [asdict(row) for row in workers]
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


def _make_plan(options: argparse.Namespace) -> GrowthPlan:
    from thinwire_lab.bench.growth import QUICK, GrowthPlan
    from thinwire_lab.testbed.network import rate_bits

    from ..core import CompositionError

    given = {name: value for name in ("millions", "workers", "rate", "steps") if (value := getattr(options, name))}
    plan = replace(QUICK if options.quick else GrowthPlan(), **given)
    check_network(plan.rate, workers=max(plan.workers))
    if rate_bits(plan.rate) is None:
        raise CompositionError(f"--rate: must be that of a shaped link, such as 100mbit, got {plan.rate!r}")
    if max(plan.millions) > MAX_MILLIONS:
        raise CompositionError(f"--millions: must be at most {MAX_MILLIONS}, got {max(plan.millions)}")
    return plan


def _make_sizes_table(rows: Sequence[SizeRow], steps: int) -> Table:
    title = f"two workers over loopback, buckets of 25 MB; medians of {steps} steps"
    heads = ("step (ms)", "transfer (ms)", "overhead (ms/MB)", "of the first", "states", "in flight", "new memory (MB)")
    table = _start_table(title, ("composition", "parameters (M)", *heads))
    first: dict[str, float] = {}
    for row in rows:
        relative = row.overhead_ms_per_mb / first.setdefault(row.composition, row.overhead_ms_per_mb)
        times = f"{row.step_ms:.1f}", f"{row.transfer_ms:.1f}", f"{row.overhead_ms_per_mb:.3f}", f"{relative:.2f}"
        memory = f"{row.state_share:.2f}", f"{row.in_flight_share:.2f}", f"{row.new_mb_per_step:.1f}"
        table.add_row(row.composition, f"{row.millions:g}", *times, *memory)
    return table


def _make_workers_table(rows: Sequence[WorkersRow], plan: GrowthPlan) -> Table:
    title = f"{plan.worker_millions:g} M parameters, {plan.rate}; per worker and step, medians of {plan.steps} steps"
    modelled = ("MB by the formula (modelled)", "ms by the formula (modelled)")
    heads = ("data (MB)", "on the interface (MB)", "time (ms)", "link use", "CPU (ms)", *modelled)
    table = _start_table(title, ("composition", "workers", *heads))
    for row in rows:
        measured = (
            f"{row.data_mb:.3g}",
            f"{row.wire_mb:.3g}",
            f"{row.step_ms:.0f}",
            f"{row.link_use:.2f}",
            f"{row.cpu_ms:.0f}",
        )
        formula = f"{row.formula_mb:.3g}", f"{row.formula_ms:.0f}"
        table.add_row(row.composition, str(row.workers), *measured, *formula)
    return table


def _start_table(title: str, heads: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for at, head in enumerate(heads):
        table.add_column(head, justify="right" if at else "left", no_wrap=at == 0)
    return table
