"""What `thinwire bench kernels` and `thinwire bench ddp` wrote with --json, as tables for docs/performance.md:
`python tools/bench_tables.py FILE ...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def table(columns: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(columns) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (columns, rule, *rows))


def of_kernels(found: dict[str, Any]) -> str:
    rows = [[row["kernel"], f"{row['native']:.2f}", f"{row['reference']:.1f}"] for row in found["rows"]]
    return f"{found['mb']:g} MB, {found['kernels']}:\n\n" + table(["kernel", "here", "torch expression"], rows)


def of_steps(found: dict[str, Any]) -> str:
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
    for name in sys.argv[1:]:
        found = json.loads(Path(name).read_text())
        for part in found if isinstance(found, list) else [found]:
            print((of_steps if "model" in part else of_kernels)(part), end="\n\n")
