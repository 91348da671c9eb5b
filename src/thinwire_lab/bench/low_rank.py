"""Cost of low-rank compressors in copies of the layer: `python -m thinwire_lab.bench.low_rank [--json FILE] [--quick]`.

Median CPU time of one thread; the unit is one copy of the layer. A step of PowerSGD with error feedback is timed with
one rank: all of its arithmetic and no network.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from thinwire.catalog import parse, parse_compressor
from thinwire.core import Context, TensorSpec, World, derive_key, loopback

_BENCH_KEY = "bench low rank"  # frozen: makes the random bits

MATRICES = ((2048, 2048), (512, 4608))
CONVOLUTION = (512, 512, 3, 3)
CASES = (
    *((text, shape) for shape in MATRICES for text in ("svd(rank=4)", "rsvd(rank=4)", "projection(rank=4)")),
    *(
        (text, CONVOLUTION)
        for text in (
            "st_hosvd(rank=4)",
            "hosvd(rank=4)",
            "tensor_train(rank=8)",
            "tensor_train(max_error=0.1)",
            "cp(rank=4)",
        )
    ),
    ("tensor_train(rank=8, dims=(8, 8, 8, 8, 8, 72))", MATRICES[1]),
    ("tensor_train(rank=8, dims=(16, 32, 64, 72))", MATRICES[1]),
)


STEPS = tuple(
    (text, shape)
    for shape in (*MATRICES, (4096, 4096))
    for text in ("ef(powersgd(rank=4))", "ef(powersgd(rank=4, alternate=true))")
)


@dataclass(frozen=True)
class EncodeCost:
    """Times in copies of the layer."""

    part: str
    shape: str
    encode: float
    decode: float
    copy_ms: float
    saving: float


def measure(text: str, shape: tuple[int, ...], seconds: float) -> EncodeCost:
    """Encode and decode a layer of normal numbers with one compressor, for about `seconds` each."""
    part, key = parse_compressor(text), derive_key(_BENCH_KEY)
    layer = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    spec, target = TensorSpec.of("layer", layer), torch.empty_like(layer)
    payload = part.encode(layer, key)
    copy_s = time_cpu_s(lambda: target.copy_(layer), seconds / 4)
    encode_s = time_cpu_s(lambda: part.encode(layer, key), seconds)
    decode_s = time_cpu_s(lambda: part.decode(payload, spec, key), seconds)
    saving = layer.numel() * layer.element_size() / payload.num_bytes
    return EncodeCost(text, "×".join(map(str, shape)), encode_s / copy_s, decode_s / copy_s, 1e3 * copy_s, saving)


@dataclass(frozen=True)
class StepCost:
    """Time of a whole step, in copies of the layer."""

    composition: str
    shape: str
    step: float
    copy_ms: float


def measure_step(text: str, shape: tuple[int, ...], seconds: float) -> StepCost:
    """Time a step from gradient and residual to the average and the next residual."""
    rule, layer = parse(text), torch.randn(shape, generator=torch.Generator().manual_seed(0))
    spec, target = TensorSpec.of("layer", layer), torch.empty_like(layer)
    state = rule.init(spec, derive_key(_BENCH_KEY))

    def step() -> None:
        nonlocal state
        state = loopback(rule.reduce(layer, spec, state, Context(0, World(0, 1)))).state

    copy_s = time_cpu_s(lambda: target.copy_(layer), seconds / 4)
    return StepCost(text, "×".join(map(str, shape)), time_cpu_s(step, seconds) / copy_s, 1e3 * copy_s)


def time_cpu_s(work: Callable[[], object], seconds: float, min_runs: int = 3) -> float:
    """Median CPU seconds of repeated runs."""
    work()
    times: list[float] = []
    while len(times) < min_runs or (sum(times) < seconds and len(times) < 1000):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times)


def table(rows: Sequence[EncodeCost] | Sequence[StepCost]) -> str:
    """One aligned line per case below a header."""
    names = [field.name.replace("_", " ") for field in fields(rows[0])]
    cells = [[_format(value) for value in asdict(row).values()] for row in rows]
    widths = [max(len(line[i]) for line in (names, *cells)) for i in range(len(names))]
    lines = [[cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))]
             for line in (names, *cells)]  # fmt: skip
    return "\n".join("  ".join(line) for line in lines)


def _format(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m thinwire_lab.bench.low_rank", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, and no svd of the large matrix")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cases = [case for case in CASES if not (options.quick and case == ("svd(rank=4)", MATRICES[0]))]
    seconds = 0.1 if options.quick else 1.0
    steps = [measure_step(text, shape, seconds) for text, shape in STEPS]
    print("a step, in copies of the layer; one thread, CPU time")
    print(table(steps), flush=True)
    rows = [measure(text, shape, seconds) for text, shape in cases]
    print("\nencode and decode, in copies of the layer")
    print(table(rows))
    if options.json is not None:
        figures = {"steps": [asdict(row) for row in steps], "compressors": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
