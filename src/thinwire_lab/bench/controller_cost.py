"""What choosing per layer costs: `python -m thinwire_lab.bench.controller_cost [--json FILE] [--quick]`.

Processor time of one thread, medians. A decision is L-GreCo's in a world of one: all its arithmetic and no network, and
of a gradient of the model's own. The share is of the steps between two decisions at the default period: one decision
and the looks of its window, over the computing (forward and backward) of all these steps. Beside it, how far errors
that are estimated for all settings at once are from those that are found by trying.
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
from thinwire.core import Context, Key, LayerObservation, Reduced, TensorSpec, World, loopback
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
    """Milliseconds, and shares in percent."""

    model: str
    family: str
    layers: int
    entries: int
    compute_ms: float
    look_ms: float
    decide_ms: float
    share: float
    apart: float  # of the estimated errors from the tried ones: the median over the table
    apart_most: float


def make_gradients(model: str) -> tuple[dict[str, Tensor], float]:
    """After a few steps, and what forward and backward take."""
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


def measure(model: str, family: str, gradients: dict[str, Tensor], compute_s: float, seconds: float) -> ControllerCost:
    layers = [TensorSpec.of(name, tensor) for name, tensor in gradients.items()]
    exchanger = Exchanger(
        layers, assign_composition(layers, f"ef(adapt({COMPRESSORS[family]}, controller=lgreco(start=1, window=1)))")
    )
    chooser = exchanger.controller
    assert isinstance(chooser, LGreCo)
    plan, state = chooser.init(layers)
    ctx = Context(0, World(0, 1), 0, plan)
    _, state = loopback(chooser.replan(plan, state, ctx))  # the first is not due
    nothing: Any = Reduced(torch.zeros(0), torch.zeros(0), ())
    seen = {
        name: LayerObservation(t, nothing, partial(torch.add, t, t)) for name, t in gradients.items()
    }  # as with a residual

    def look() -> Any:
        looked = state
        for spec in layers:
            looked = chooser.observe(spec, seen[spec.name], looked, ctx)
        return looked

    looked = look()
    look_s = time_cpu_s(look, seconds / 4)
    decide_s = time_cpu_s(lambda: loopback(chooser.replan(plan, looked, ctx)), seconds)
    usual = LGreCo()
    share = (decide_s + usual.window * look_s) / (usual.every * compute_s)
    apart = estimate_differences(exchanger, gradients)
    return ControllerCost(
        model, family, len(exchanger.menus), len(exchanger.menus[0][1].options), 1e3 * compute_s, 1e3 * look_s,
        1e3 * decide_s, 100 * share, 100 * statistics.median(apart), 100 * max(apart),
    )  # fmt: skip


def estimate_differences(
    exchanger: Exchanger, gradients: dict[str, Tensor], most: int = 4, numel: int = 600_000
) -> list[float]:
    """Relative, of every entry, for the largest layers whose exact factorisation does not take all day."""
    ordered = sorted(exchanger.menus, key=lambda choice: choice[0].numel)
    found: list[float] = []
    for spec, menu in [choice for choice in ordered if choice[0].numel <= numel][-most:]:
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


def measure_all(models: Sequence[str], families: Sequence[str], seconds: float) -> list[ControllerCost]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = []
        for model in models:
            gradients, compute_s = make_gradients(model)
            rows += [measure(model, family, gradients, compute_s, seconds) for family in families]
        return rows
    finally:
        torch.set_num_threads(threads)


def table(rows: Sequence[ControllerCost]) -> str:
    head = "| model | family | layers | entries | step, ms | look, ms | decision, ms | share, % | apart, % (most) |"
    lines = [
        f"| {r.model} | {r.family} | {r.layers} | {r.entries} | {r.compute_ms:.0f} | {r.look_ms:.1f} | "
        f"{r.decide_ms:.0f} | {r.share:.2f} | {r.apart:.2f} ({r.apart_most:.2f}) |"
        for r in rows
    ]
    return "\n".join([head, "|---|---|" + "---:|" * 7, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description="what choosing per layer costs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="one run of each")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--families", nargs="+", default=list(COMPRESSORS), choices=list(COMPRESSORS))
    args = parser.parse_args()
    rows = measure_all(args.models, args.families, 0.0 if args.quick else 3.0)
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
