"""Bytes that a worker sends per step, by number of workers: `python -m thinwire_lab.bench.scaling [--json FILE]`.

One layer of random numbers in lockstep; the meter counts the bytes, headers included.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from thinwire.catalog import parse
from thinwire.core import TensorSpec, World
from thinwire.drivers.lockstep import lockstep
from thinwire.drivers.meter import Meter
from thinwire.exchange import Exchanger

METHODS = (
    "dense()",
    "qsgd(bits=4)",
    "two_hop(qsgd(bits=4))",
    "topk(density=0.01)",
    "two_hop(topk(density=0.01))",
    "vote()",
)
WORKERS = (2, 4, 8, 16, 32, 64)


def sent_bytes(text: str, workers: int, numel: int) -> float:
    """Wire bytes of one step, mean over the workers."""
    spec = TensorSpec("layer", (numel,))
    meters = [Meter() for _ in range(workers)]
    exchangers = [Exchanger([spec], parse(text)) for _ in range(workers)]
    generator = torch.Generator().manual_seed(1)
    tensors = [{"layer": torch.randn(numel, generator=generator)} for _ in range(workers)]
    lockstep([e.run_step(tensors[r], 0, World(r, workers)) for r, e in enumerate(exchangers)], meters)
    return sum(meter.total().sent_bytes for meter in meters) / workers


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numel", type=int, default=1 << 18, help="elements of the layer (default: 262144)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE as JSON")
    options = parser.parse_args(arguments)
    print(f"kB sent per worker and step, {options.numel} float32 values ({4 * options.numel / 1e3:.0f} kB dense)")
    print(f"{'composition':<30}" + "".join(f"{w:>10}" for w in WORKERS))
    figures = {}
    for text in METHODS:
        figures[text] = {w: sent_bytes(text, w, options.numel) for w in WORKERS}
        print(f"{text:<30}" + "".join(f"{figures[text][w] / 1e3:>10.1f}" for w in WORKERS), flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
