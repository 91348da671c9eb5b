"""What an exchange costs beside its arithmetic: `python -m thinwire_lab.bench.overhead`.

Layers so small that no kernel takes any time, two ranks in lockstep, one thread: what is left is Python. CPU time of a
rank in a step, and the calls that Python's profiler counts.
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
    """All ranks' exchangers, and gradients that stay the same."""

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
    """Milliseconds and calls for one layer, of one rank in a step."""
    subject = SmallLayers(composition)
    subject.steps(3)
    began = time.process_time()
    subject.steps(STEPS)
    ms = 1e3 * (time.process_time() - began)
    profile = cProfile.Profile()
    profile.runcall(subject.steps, STEPS)
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
