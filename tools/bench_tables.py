"""Print JSON results of `thinwire bench kernels` and `thinwire bench ddp` as Markdown tables for docs/performance.md.

`python tools/bench_tables.py FILE ...`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def table(columns: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(columns) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (columns, rule, *rows))


def format_kernels(found: list[dict[str, Any]]) -> str:
    """A table with a column for each run, and one for the torch expressions of the first."""
    heads = [f"{run['mb']:g} MB, {run['kernels']}" for run in found]
    runs = [[f"{row['native']:.2f}" for row in run["rows"]] for run in found]
    names, torch = zip(*((row["kernel"], f"{row['reference']:.1f}") for row in found[0]["rows"]), strict=True)
    rows = [list(row) for row in zip(names, *runs, torch, strict=True)]
    return table(["kernel", *heads, f"{found[0]['mb']:g} MB, torch expression"], rows)


def format_steps(found: dict[str, Any]) -> str:
    def interval(figure: dict[str, float], digits: int) -> str:
        return f"{figure['median']:.{digits}f} [{figure['low']:.{digits}f}, {figure['high']:.{digits}f}]"

    rows = [
        [
            row["method"],
            interval(row["step_ms"], 0),
            interval(row["floors"], 2),
            f"{row['sent_mb']:.3g}",
            f"{row['cpu_ms']:.0f}",
        ]
        for row in found["rows"]
    ]
    head = f"{found['model']}, {found['rate']}, {found['steps']} steps each:"
    return head + "\n\n" + table(["method", "step (ms)", "of the floor", "sent (MB)", "CPU (ms)"], rows)


if __name__ == "__main__":
    read = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    if kernels := [found for found in read if isinstance(found, dict)]:
        print(format_kernels(kernels), end="\n\n")
    for found in (part for parts in read if isinstance(parts, list) for part in parts):
        print(format_steps(found), end="\n\n")
