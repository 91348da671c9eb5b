"""Recovery, accuracy, speed and traffic of count sketches: `python -m thinwire_lab.bench.sketch [--json FILE]`.

Recovery is the fraction of random keys and positions with which all n values are recovered from m cells. Traffic is
computed by formula; `thinwire run sketch` measures it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from thinwire.core import derive_key
from thinwire.kernels import cells_for, distinct_positions, peel, peeling_order, sketch, table_cells

from ..published.sketch_traffic import compare_traffic

_BENCH_KEY = "bench sketch"  # frozen: makes the random bits

SHARES = (1.15, 1.20, 1.23, 1.25, 1.30, 1.40, 1.50)  # m/n
TRIALS = {100: 1000, 1_000: 400, 10_000: 100, 100_000: 10}
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Recovery:
    """Fraction of trials with complete recovery; mean fraction of missing values in the other trials (`left`)."""

    n: int
    cells: int
    trials: int
    recovered: float
    left: float
    rounds: float


@dataclass(frozen=True)
class Speed:
    """One tensor of normal numbers: CPU milliseconds, best of three, and errors relative to the largest value."""

    n: int
    lanes: int
    cells_each: float
    rounds: int
    left: int
    sketch_ms: float
    peel_ms: float
    error: float
    exact_error: float


def measure_recovery(n: int, cells: int, trials: int) -> Recovery:
    """Recovery depends only on positions and key, so that no values are sketched."""
    lefts, rounds = [], []
    for trial in range(trials):
        key = derive_key(trial, _BENCH_KEY, n)
        order = peeling_order(distinct_positions(key, n, 20 * n, CPU), cells, key)
        lefts.append(float(order.left.double().mean()))
        rounds.append(len(order.rounds))
    failed = [left for left in lefts if left]
    mean_left = sum(failed) / len(failed) if failed else 0.0
    return Recovery(n, cells, trials, 1 - len(failed) / trials, mean_left, sum(rounds) / trials)


def recoveries() -> Iterator[tuple[str, Recovery]]:
    """All entries of the table with the names of their columns."""
    for n, trials in TRIALS.items():
        for share in SHARES:
            yield f"{share:.2f}", measure_recovery(n, 3 * round(share * n / 3), trials)  # three rows of one length
        yield "rule", measure_recovery(n, cells_for(n), trials)


def measure_speed(n: int, lanes: int = 1) -> Speed:
    """Sketch and peel n of 20 n values, as float32 and as integers."""
    key = derive_key(_BENCH_KEY, n)
    positions = distinct_positions(key, n, 20 * n, CPU)
    values = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    cells = table_cells(positions, lanes)
    tries = []
    for _ in range(3):
        started = time.process_time()  # CPU time, because the machine may be shared
        table = sketch(values, positions, cells, key, lanes).float()
        between = time.process_time()
        order = peeling_order(positions, cells, key, lanes)
        peeled = peel(table, order)
        tries.append((1e3 * (between - started), 1e3 * (time.process_time() - between)))
    whole = (values * 2**20).round().to(torch.int32)
    again = peel(sketch(whole, positions, cells, key, lanes), order)
    there = ~order.left
    error = float(((peeled.values - values)[there].abs() / values.abs().max()).max())
    exact = float((again.values - whole)[there].abs().max())
    times = min(t[0] for t in tries), min(t[1] for t in tries)
    return Speed(n, lanes, cells / n, len(order.rounds), int(order.left.sum()), *times, error, exact)


def print_recovery(quiet: bool) -> list[Recovery]:
    rows: dict[int, dict[str, Recovery]] = {}
    total = len(TRIALS) * (len(SHARES) + 1)
    for done, (column, row) in enumerate(recoveries(), 1):
        rows.setdefault(row.n, {})[column] = row
        if not quiet:
            print(f"\r{done} of {total} cells of the table", end="" if done < total else "\n", file=sys.stderr)
    names = [f"{share:.2f}" for share in SHARES] + ["rule"]
    for title, figure in (
        ("share of draws in which all n values were read back from m cells", "recovered"),
        ("of the draws that failed, the mean share of values left unread", "left"),
        ("rounds of peeling, mean", "rounds"),
    ):
        print(f"{title}\n{'n   m/n:':>10}" + "".join(f"{name:>8}" for name in names))
        for n, by_column in rows.items():
            print(f"{n:>10}" + "".join(f"{getattr(by_column[name], figure):>8.3g}" for name in names))
    return [row for by_column in rows.values() for row in by_column.values()]


def print_speed() -> list[Speed]:
    rows = [measure_speed(n) for n in (1_000, 10_000, 100_000, 1_000_000)] + [
        measure_speed(n, 1024) for n in (100_000, 1_000_000)
    ]
    names = [field.name for field in fields(Speed)]
    print("sketching and peeling, one thread; errors are shares of the largest value, exact ones are whole numbers")
    for line in (
        names,
        *([f"{v:,}" if isinstance(v, int) else f"{v:.3g}" for v in asdict(row).values()] for row in rows),
    ):
        print("".join(f"{cell:>13}" for cell in line))
    return rows


def print_traffic() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    print("kB a worker sends for 2^20 float32 values, by formula; the last column is the method with the fewest bytes")
    print(f"{'density, supports, workers':<30}" + "".join(f"{name:>9}" for name in compare_traffic(0.1, 2).num_bytes))
    for density in (0.01, 0.05):
        for name, overlap in (("identical", 1.0), ("independent", "independent"), ("disjoint", 0.0)):
            for workers in (2, 4, 8, 16):
                worth = compare_traffic(density, workers, overlap)
                case = f"{100 * density:.0f} %, {name}, {workers}"
                costs = "".join(f"{cost / 1e3:>9.1f}" for cost in worth.num_bytes.values())
                print(f"{case:<30}{costs}  {worth.cheapest}")
                rows.append({"density": density, "supports": name, "workers": workers, **worth._asdict()})
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m thinwire_lab.bench.sketch", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE as JSON")
    parser.add_argument("--quiet", action="store_true", help="print no progress")
    options = parser.parse_args(arguments)
    found = [asdict(row) for row in print_recovery(options.quiet)]
    figures = {"recovery": found, "speed": [asdict(row) for row in print_speed()], "traffic": print_traffic()}
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
