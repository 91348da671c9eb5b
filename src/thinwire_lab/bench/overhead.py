"""Python overhead of an exchange: `python -m thinwire_lab.bench.overhead`.

Layers so small that kernels take no time, two ranks in lockstep, one thread. CPU time per layer, rank and step, and the
function calls that Python's profiler counts.
"""

from __future__ import annotations

import cProfile
import pstats
import time

import torch

from thinwire.catalog import parse
from thinwire.core import TensorSpec, World
from thinwire.drivers.lockstep import lockstep
from thinwire.exchange import Exchanger

COMPOSITIONS = ("dense()", "ef(topk(density=0.01))", "ef(qsgd(bits=4))", "ef(sign())", "ef(powersgd(rank=1))")
LAYERS, SIDE, RANKS, STEPS = 20, 16, 2, 20


class SmallLayers:
    """Exchangers of all ranks and constant gradients of small layers."""

    def __init__(self, composition: str) -> None:
        layers = [TensorSpec(f"layer{i}", (SIDE, SIDE)) for i in range(LAYERS)]
        self.exchangers = [Exchanger(layers, parse(composition)) for _ in range(RANKS)]
        self.gradients = {layer.name: torch.randn(layer.shape) for layer in layers}
        self.step = 0

    def steps(self, count: int) -> None:
        for _ in range(count):
            ranks = enumerate(self.exchangers)
            lockstep([each.run_step(self.gradients, self.step, World(rank, RANKS)) for rank, each in ranks])
            self.step += 1


def measure(composition: str) -> tuple[float, float]:
    """Milliseconds and calls per layer, rank and step."""
    layers = SmallLayers(composition)
    layers.steps(3)
    began = time.process_time()
    layers.steps(STEPS)
    ms = 1e3 * (time.process_time() - began)
    profile = cProfile.Profile()
    profile.runcall(layers.steps, STEPS)
    calls = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    each = LAYERS * RANKS * STEPS
    return ms / each, calls / each


def main() -> None:
    torch.set_num_threads(1)
    print(f"{LAYERS} layers of {SIDE} x {SIDE}; of one layer, rank and step")
    for composition in COMPOSITIONS:
        ms, calls = measure(composition)
        print(f"{composition:<26}{ms:>8.3f} ms {calls:>6.0f} calls")


if __name__ == "__main__":
    main()
