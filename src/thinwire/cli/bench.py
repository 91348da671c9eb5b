"""`thinwire bench`: measure kernels, DDP steps, Python's overhead, growth and time to accuracy on this machine."""

from __future__ import annotations

from . import bench_accuracy, bench_ddp, bench_growth, bench_kernels, bench_overhead
from .parsers import SubParsers


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("bench", help="measure kernels and DDP steps on this machine", description=__doc__)
    benches = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    for bench in (bench_kernels, bench_ddp, bench_overhead, bench_growth, bench_accuracy):
        bench.add_to(benches)
