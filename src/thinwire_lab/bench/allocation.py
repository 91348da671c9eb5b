"""CPU seconds of the dynamic program that chooses one option for each layer: C and torch, one thread.

`python -m thinwire_lab.bench.allocation`
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from thinwire.kernels import allocation, dispatch, native

SIZES = ((60, 16, 10_000), (400, 100, 10_000))  # layers, options per layer, steps of the budget


def draw_case(layers: int, options: int, budget: int) -> tuple[Tensor, Tensor]:
    """Random costs that fall as errors rise, as for densities of a layer; the average option about fills the budget."""
    generator = torch.Generator().manual_seed(layers)
    numel = torch.randint(1_000, 1_000_000, (layers, 1), generator=generator)
    places = torch.linspace(0.02, 1, options)
    costs = (numel * places.flip(0)).round().double()
    errors = (places * budget / layers * 2 * torch.rand(layers, 1, generator=generator)).ceil().long().clamp(1, budget)
    return costs, errors


def main() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    print(f"{native.describe_kernels()}; seconds")
    for layers, options, budget in SIZES:
        case = draw_case(layers, options, budget)
        times = []
        for kernels in (dispatch, allocation):
            start = time.process_time()
            kernels.solve_allocation(*case, budget)
            times.append(time.process_time() - start)
        print(f"{layers} layers x {options} options, {budget} steps: C {times[0]:.3f}, torch {times[1]:.3f}")
    torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
