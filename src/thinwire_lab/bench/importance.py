"""Cost of refreshing the importance vector, in training steps: `python -m thinwire_lab.bench.importance`.

A small convolutional network with batch norm and dropout, and one fixed minibatch. A solver step is a forward and
backward pass and a few passes over all parameters, so a refresh of `steps` solver steps costs about `steps` training
steps. CPU time of one thread, so that other load matters little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.catalog import parse
from thinwire.core import TensorSpec, World, loopback
from thinwire.exchange import Exchanger
from thinwire.importance import ImportanceSolver, ModuleObjective


def network(width: int) -> nn.Module:
    def block(inside: int, outside: int) -> list[nn.Module]:
        return [nn.Conv2d(inside, outside, 3, 2, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(), nn.Dropout(0.1)]

    convolutions = [*block(3, width), *block(width, 2 * width), *block(2 * width, 4 * width)]
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


def seconds(work: Callable[[], Any], times: int) -> float:
    """Median CPU seconds of several runs after a warm-up."""
    work()
    taken = []
    for _ in range(times):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return statistics.median(taken)


def measure(width: int, batch: int, steps: int, times: int) -> dict[str, float]:
    """Milliseconds of a training step, a refresh, the closed form, and an exchange with and without importance."""
    torch.manual_seed(0)
    model = network(width)
    images, labels = torch.randn(batch, 3, 32, 32), torch.arange(batch) % 10

    def closure(module: nn.Module) -> Tensor:
        return nn.functional.cross_entropy(module(images), labels)

    def train() -> None:
        model.zero_grad()
        closure(model).backward()  # type: ignore[no-untyped-call]

    objective = ModuleObjective(model, closure)
    point = objective.point()
    _, gradient = objective.value_and_gradient(point)
    solver = ImportanceSolver("scaled_simplex", steps=steps, eta=1e7, lam=1e-3)
    after = {name: point[name] - 0.01 * g for name, g in gradient.items()}
    specs = [TensorSpec.of(name, p) for name, p in point.items()]
    exchangers = [Exchanger(specs, parse("ef(impk(density=0.01))")) for _ in range(2)]
    exchangers[1].importance.replace_all(loopback(solver.solve(objective, point, gradient, 0.01)).importance)
    plain, weighed = (
        seconds(lambda e=e: loopback(e.run_step(gradient, 0, World(0, 1))), 3 * times)  # type: ignore[misc]
        for e in exchangers
    )
    return {
        "parameters": float(sum(p.numel() for p in point.values())),
        "training step": 1e3 * seconds(train, 3 * times),
        "refresh": 1e3 * seconds(lambda: loopback(solver.solve(objective, point, gradient, 0.01)), times),
        "closed form": 1e3
        * seconds(lambda: solver.solve_one_step(gradient, objective.value_and_gradient(after)[1], 0.01), 3 * times),
        "exchange, w = 1": 1e3 * plain,
        "exchange with w": 1e3 * weighed,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer (default: 32)")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=50, help="solver steps of a refresh (default: 50)")
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = measure(options.width, options.batch, options.steps, options.times)
    print(f"{found.pop('parameters'):,.0f} parameters, batch {options.batch}, {options.steps} solver steps")
    for what, milliseconds in found.items():
        print(f"{what:16} {milliseconds:9.1f} ms  {milliseconds / found['training step']:6.2f} training steps")
    for every in (50, 400, 3200):
        share = found["refresh"] / (found["refresh"] + every * found["training step"])
        print(f"a refresh every {every:4} steps takes {100 * share:4.1f} % of the time")


if __name__ == "__main__":
    main()
