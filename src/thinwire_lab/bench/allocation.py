"""What a decision of L-GreCo costs apart from the passes over the tensors: `python -m thinwire_lab.bench.allocation`.

CPU time of one thread, medians: the dynamic program that chooses one option for each layer, in C and in torch; and a
whole decision with one rank for layers so small that the passes over them (means, selections, sums) are short. What
`estimate_errors` takes for all layers is such passes alone, and is shown apart.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire.catalog import parse
from thinwire.core import Key, TensorSpec, estimates_errors
from thinwire.exchange import Exchanger
from thinwire.kernels import allocation, dispatch, native

from .controller_cost import prepare_decision, time_cpu_s

SIZES = ((60, 16, 10_000), (400, 100, 10_000))  # layers, options per layer, steps of the budget
COMPOSITION = "ef(adapt(topk(density=0.05), controller=lgreco(start=1, window=1)))"
LAYERS, SHAPE = 60, (32, 40)


class Decision(NamedTuple):
    """A decision for all layers after the first one; times in milliseconds."""

    layers: int
    options: int
    total_ms: float
    errors_ms: float  # of it, the errors of all options: passes over the tensors
    calls_per_layer: float  # of Python functions and of functions called from Python

    @property
    def without_passes_ms(self) -> float:
        return self.total_ms - self.errors_ms


def draw_case(layers: int, options: int, budget: int) -> tuple[Tensor, Tensor]:
    """Random costs that fall as errors rise, as for densities of a layer; the average option about fills the budget."""
    generator = torch.Generator().manual_seed(layers)
    numel = torch.randint(1_000, 1_000_000, (layers, 1), generator=generator)
    places = torch.linspace(0.02, 1, options)
    costs = (numel * places.flip(0)).round().double()
    errors = (places * budget / layers * 2 * torch.rand(layers, 1, generator=generator)).ceil().long().clamp(1, budget)
    return costs, errors


def measure_allocation(layers: int, options: int, budget: int, seconds: float) -> tuple[float, float]:
    """Seconds of the dynamic program: as dispatched (C if it was built), and in torch."""
    case = draw_case(layers, options, budget)
    return (
        time_cpu_s(lambda: dispatch.solve_allocation(*case, budget), seconds),
        time_cpu_s(lambda: allocation.solve_allocation(*case, budget), seconds),
    )


def measure_decision(layers: int, shape: tuple[int, ...], seconds: float) -> Decision:
    """Time a decision on random gradients, of which some layers have more than others."""
    specs = [TensorSpec(f"layer{at}", shape) for at in range(layers)]
    generator = torch.Generator().manual_seed(0)
    gradients = {spec.name: torch.randn(shape, generator=generator) * (1 + at % 7) for at, spec in enumerate(specs)}
    exchanger = Exchanger(specs, parse(COMPOSITION))
    _, decide = prepare_decision(exchanger, gradients)
    decide()  # fills the caches that last as long as the menus
    profile = cProfile.Profile()
    profile.runcall(decide)
    calls = pstats.Stats(profile).total_calls / layers  # type: ignore[attr-defined]

    def estimate() -> None:
        for spec, menu in exchanger.menus:
            option = menu.options[0]
            assert estimates_errors(option)
            option.estimate_errors(gradients[spec.name], spec, menu.options, Key(0), False)

    options = len(exchanger.menus[0][1].options)
    total_s, errors_s = (time_cpu_s(work, seconds) for work in (decide, estimate))
    return Decision(layers, options, 1e3 * total_s, 1e3 * errors_s, calls)


def main() -> None:
    parser = argparse.ArgumentParser(description="measure the allocation and a decision of L-GreCo")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement; medians")
    args = parser.parse_args()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    print(f"{native.describe_kernels()}; medians")
    for layers, options, budget in SIZES:
        native_s, torch_s = measure_allocation(layers, options, budget, args.seconds)
        size = f"{layers} layers x {options} options, {budget} steps"
        print(f"allocation, {size}: C {native_s:.4f} s, torch {torch_s:.3f} s")
    found = measure_decision(LAYERS, SHAPE, args.seconds)
    print(
        f"decision, {found.layers} layers x {found.options} options: {found.without_passes_ms:.1f} ms and "
        f"{found.errors_ms:.1f} ms for passes over the tensors; {found.calls_per_layer:.0f} calls per layer"
    )
    torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
