"""Cost of a per-layer controller: `python -m thinwire_lab.bench.controller_cost [--json FILE] [--quick]`.

Median CPU time of one thread. A decision is L-GreCo's with one rank: all of its arithmetic and no network, on a
gradient of the model. The share relates one decision and the observations of its window to the forward and backward
passes of all steps between two decisions at the default period. Also: the difference between estimated and exact
errors of the options.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.catalog.patterns import assign_composition
from thinwire.controllers.estimates import compute_errors
from thinwire.controllers.lgreco import LGreCo
from thinwire.core import Context, Key, LayerObservation, Plan, Reduced, TensorSpec, World, loopback
from thinwire.exchange import Exchanger

from .ddp import MODELS, make_workload

COMPRESSORS = {
    "topk": "topk(density=0.01)",
    "qsgd": "qsgd(bits=4)",
    "uniform": "uniform(bits=4)",
    "powersgd": "powersgd(rank=4)",
    "mixture": "topk(density=0.01), qsgd(bits=4), powersgd(rank=4)",
}


@dataclass(frozen=True)
class ControllerCost:
    """Times in milliseconds, shares and differences in percent."""

    model: str
    compressor: str
    layers: int
    options: int
    compute_ms: float
    observe_ms: float
    decide_ms: float
    share: float
    difference: float  # of estimated and exact errors, median over the options
    max_difference: float


def make_gradients(model: str) -> tuple[dict[str, Tensor], float]:
    """Gradients after a few steps, and the CPU seconds of a forward and backward pass."""
    make, batch = make_workload(model, 0)
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)

    def step() -> None:
        x, y = batch()
        optimizer.zero_grad()
        out = net(x)
        nn.functional.cross_entropy(out.flatten(0, -2), y.flatten()).backward()  # type: ignore[no-untyped-call]

    took = []
    for _ in range(4):
        took.append(time_cpu_s(step, 0.0))
        optimizer.step()
    named = {name: p.grad.detach().clone() for name, p in net.named_parameters() if p.grad is not None}
    return named, statistics.median(took[1:])


def measure(
    model: str, compressor: str, gradients: dict[str, Tensor], compute_s: float, seconds: float
) -> ControllerCost:
    layers = [TensorSpec.of(name, tensor) for name, tensor in gradients.items()]
    exchanger = Exchanger(
        layers,
        assign_composition(layers, f"ef(adapt({COMPRESSORS[compressor]}, controller=lgreco(start=1, window=1)))"),
    )
    observe, decide = prepare_decision(exchanger, gradients)
    observe_s, decide_s = time_cpu_s(observe, seconds / 4), time_cpu_s(decide, seconds)
    usual = LGreCo()
    share = (decide_s + usual.window * observe_s) / (usual.every * compute_s)
    differences = compare_errors(exchanger, gradients)
    return ControllerCost(
        model, compressor, len(exchanger.menus), len(exchanger.menus[0][1].options), 1e3 * compute_s, 1e3 * observe_s,
        1e3 * decide_s, 100 * share, 100 * statistics.median(differences), 100 * max(differences),
    )  # fmt: skip


def prepare_decision(
    exchanger: Exchanger, gradients: dict[str, Tensor]
) -> tuple[Callable[[], object], Callable[[], tuple[Plan, Any]]]:
    """What observes all layers, and what decides after they were observed. The controller is lgreco(start=1, window=1).

    There is one rank: all of the controller's arithmetic, and no network.
    """
    controller, layers = exchanger.controller, list(exchanger.layers.values())
    assert isinstance(controller, LGreCo)
    plan, state = controller.init(layers)
    ctx = Context(0, World(0, 1), 0, plan)
    _, state = loopback(controller.replan(plan, state, ctx))  # the first is not due
    nothing: Any = Reduced(torch.zeros(0), torch.zeros(0), ())
    observations = {
        name: LayerObservation(t, nothing, partial(torch.add, t, t)) for name, t in gradients.items()
    }  # as with a residual

    def observe() -> Any:
        observed = state
        for spec in layers:
            observed = controller.observe(spec, observations[spec.name], observed, ctx)
        return observed

    observed = observe()
    return observe, lambda: loopback(controller.replan(plan, observed, ctx))


def compare_errors(
    exchanger: Exchanger, gradients: dict[str, Tensor], max_layers: int = 4, max_numel: int = 600_000
) -> list[float]:
    """Relative differences of estimated and exact errors of all options, for the largest layers up to `max_numel`."""
    ordered = sorted(exchanger.menus, key=lambda pair: pair[0].numel)
    found: list[float] = []
    for spec, menu in [pair for pair in ordered if pair[0].numel <= max_numel][-max_layers:]:
        quick, exact = (compute_errors(menu.options, gradients[spec.name], spec, Key(1), at) for at in (False, True))
        found += ((quick - exact).abs() / exact.clamp(min=1e-30))[exact > 0].tolist()
    return found


def time_cpu_s(work: Callable[[], object], seconds: float) -> float:
    """The median of at least one run, for about so many seconds."""
    took: list[float] = []
    while not took or sum(took) < seconds:
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return statistics.median(took)


def measure_all(models: Sequence[str], compressors: Sequence[str], seconds: float) -> list[ControllerCost]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = []
        for model in models:
            gradients, compute_s = make_gradients(model)
            rows += [measure(model, compressor, gradients, compute_s, seconds) for compressor in compressors]
        return rows
    finally:
        torch.set_num_threads(threads)


def table(rows: Sequence[ControllerCost]) -> str:
    head = (
        "| model | compressor | layers | options | step, ms | observation, ms | decision, ms | share, % "
        "| error difference, % (max) |"
    )
    lines = [
        f"| {r.model} | {r.compressor} | {r.layers} | {r.options} | {r.compute_ms:.0f} | {r.observe_ms:.1f} | "
        f"{r.decide_ms:.0f} | {r.share:.2f} | {r.difference:.2f} ({r.max_difference:.2f}) |"
        for r in rows
    ]
    return "\n".join([head, "|---|---|" + "---:|" * 7, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description="measure the cost of a per-layer controller")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="one run of each measurement")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--compressors", nargs="+", default=list(COMPRESSORS), choices=list(COMPRESSORS))
    args = parser.parse_args()
    rows = measure_all(args.models, args.compressors, 0.0 if args.quick else 3.0)
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
