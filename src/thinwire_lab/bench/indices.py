"""Bits per index of every index coding and the entropy bound: `python -m thinwire_lab.bench.indices [--json FILE]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from thinwire.core import derive_key
from thinwire.kernels import distinct_positions
from thinwire.kernels.gaps import rice_parameter
from thinwire.kernels.positions import first_parameter, width_of
from thinwire.kernels.varint import varint
from thinwire.wire import encode_indices, ideal_index_bits, packed_bytes

_BENCH_KEY = "bench indices"  # frozen: makes the random bits

NUMEL = 1 << 20
DENSITIES = (0.001, 0.01, 0.05, 0.2)


@dataclass(frozen=True)
class IndexSizes:
    """Bits per index for random positions, message header included."""

    density: float
    count: int
    explicit: float
    bitmap: float
    rice: float
    chosen: str
    sent: float
    ideal: float
    excess_percent: float


def measure(numel: int, density: float, seed: int = 0) -> IndexSizes:
    """Sizes for one random set of round(density * numel) positions."""
    count = max(1, round(density * numel))
    positions = distinct_positions(derive_key(seed, _BENCH_KEY, count), count, numel, torch.device("cpu"))
    part = encode_indices(positions, numel)
    head = 1 + len(varint(count))
    sent, ideal = 8 * part.tensor.numel() / count, ideal_index_bits(count, numel) / count
    return IndexSizes(
        density=density,
        count=count,
        explicit=8 * (head + packed_bytes(count, width_of(numel))) / count,
        bitmap=8 * (head + packed_bytes(numel, 1)) / count,
        rice=8 * (head + rice_parameter(positions, first_parameter(count, numel), width_of(numel))[1]) / count,
        chosen=part.kind.partition(":")[2],
        sent=sent,
        ideal=ideal,
        excess_percent=100 * (sent / ideal - 1),
    )


def table(rows: Sequence[IndexSizes]) -> str:
    """One aligned line per density below a header."""
    names = [field.name.replace("_percent", " %") for field in fields(IndexSizes)]
    cells = [[_format(value) for value in asdict(row).values()] for row in rows]
    return "\n".join("  ".join(f"{cell:>9}" for cell in line) for line in (names, *cells))


def _format(value: float | int | str) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m thinwire_lab.bench.indices", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE as JSON")
    options = parser.parse_args(arguments)
    rows = [measure(NUMEL, density) for density in DENSITIES]
    print(f"bits per index, {NUMEL} places, positions at random")
    print(table(rows))
    if options.json is not None:
        figures = {"numel": NUMEL, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
