"""Link utilization of thinwire's and gloo's collectives: `python -m thinwire_lab.bench.link [--rate-mbit 1000]`.

Start it once per rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; rank 0 prints.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from thinwire.core import AllGather, AllReduce, Payload, Program, Request
from thinwire.drivers.torch_dist import TorchDist

WARM_UPS = 2  # opens connections and TCP windows


class Collective(NamedTuple):
    """One collective of one implementation (`by`)."""

    by: str
    request: Request
    act: Callable[[], object]


@dataclass(frozen=True)
class LinkRow:
    """Median over repetitions of the time of the slowest rank; the rate counts data without headers."""

    collective: str
    by: str
    ranks: int
    megabytes: float
    median_ms: float
    wire_mbit_s: float
    share_of_link: float | None


def make_collectives(backend: TorchDist, ordered: TorchDist, numel: int) -> list[Collective]:
    tensor = torch.full((numel,), 0.0)  # zeros, because gloo sums in place
    parts = [torch.empty_like(tensor) for _ in range(backend.world.size)]
    gather, reduce = AllGather(Payload((tensor,))), AllReduce(tensor)
    return [
        Collective("thinwire", gather, lambda: backend.run(_make_program(gather))),
        Collective("gloo", gather, lambda: dist.all_gather(parts, tensor)),
        Collective("thinwire", reduce, lambda: backend.run(_make_program(reduce))),
        Collective("thinwire, ordered", reduce, lambda: ordered.run(_make_program(reduce))),
        Collective("gloo", reduce, lambda: dist.all_reduce(tensor)),
    ]


def _make_program(request: Request) -> Program[Any]:
    return (yield request)


def time_collectives(compared: Sequence[Collective], reps: int) -> torch.Tensor:
    """Seconds of the slowest rank by repetition and collective; taken in turns, so that noise affects all."""
    seconds = torch.zeros(WARM_UPS + reps, len(compared), dtype=torch.float64)
    for turn in range(WARM_UPS + reps):
        for i, collective in enumerate(compared):
            dist.barrier()
            started = time.perf_counter()
            collective.act()
            seconds[turn, i] = time.perf_counter() - started
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds[WARM_UPS:]


def measure(
    backend: TorchDist, ordered: TorchDist, megabytes: float, reps: int, rate_mbit: float | None
) -> list[LinkRow]:
    """One row per collective, for messages of `megabytes` million bytes."""
    compared = make_collectives(backend, ordered, round(megabytes * 1e6 / 4))
    rows = []
    for collective, seconds in zip(compared, time_collectives(compared, reps).T.tolist(), strict=True):
        median = statistics.median(seconds)
        mbit_s = 8e-6 * collective.request.wire_bytes(backend.world)[0] / median
        form = (type(collective.request).__name__, collective.by, backend.world.size, megabytes)
        rows.append(LinkRow(*form, 1e3 * median, mbit_s, mbit_s / rate_mbit if rate_mbit else None))
    return rows


def table(rows: Sequence[LinkRow]) -> str:
    """One aligned line per row below a header."""
    lines = [f"{'collective':<11}{'by':<19}{'ranks':>5}{'MB':>7}{'median ms':>11}{'Mbit/s':>9}{'of link':>9}"]
    for r in rows:
        share = "-" if r.share_of_link is None else f"{r.share_of_link:.3f}"
        form = f"{r.collective:<11}{r.by:<19}{r.ranks:>5}{r.megabytes:>7g}"
        lines.append(f"{form}{r.median_ms:>11.2f}{r.wire_mbit_s:>9.1f}{share:>9}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m thinwire_lab.bench.link", description=__doc__)
    parser.add_argument(
        "--mb", default="1,10", help="sizes of messages in million bytes, separated by commas (default: 1,10)"
    )
    parser.add_argument("--reps", type=int, default=9)
    parser.add_argument(
        "--rate-mbit", type=float, help="nominal rate of the link in Mbit/s, to print the fraction reached"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE as JSON")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with TorchDist() as backend, TorchDist(ordered=True) as ordered:
        sizes = [float(megabytes) for megabytes in options.mb.split(",")]
        rows = [row for mb in sizes for row in measure(backend, ordered, mb, options.reps, options.rate_mbit)]
        if backend.world.rank == 0:
            print(table(rows), flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
