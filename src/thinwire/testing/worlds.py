"""Run one layer through an aggregator for several steps, all ranks in lockstep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..core import Context, Plan, Program, TensorSpec, World, has_menu, parts_of
from ..drivers.lockstep import lockstep
from ..drivers.meter import Meter
from .probes import KEY

Reduce = Callable[[Tensor, TensorSpec, Any, Context], Program[Any]]


def make_default_plan(part: Any) -> Plan:
    """A plan with the default option of the part's menu, or 0."""
    menus = [inside.menu for inside in parts_of(part) if has_menu(inside)]
    return {"layer": menus[0].default if menus else 0}


def run_step(
    part: Any,
    tensors: Sequence[Tensor],
    states: Sequence[Any] | None = None,
    step: int = 0,
    seed: int = 3,
    reduce: Reduce | None = None,
    meters: Sequence[Meter] | None = None,
) -> list[Any]:
    """Run one step and return what each rank's `reduce` returns. `reduce` replaces the part's own."""
    spec, size = TensorSpec.of("layer", tensors[0]), len(tensors)
    states = [part.init(spec, KEY) for _ in tensors] if states is None else states
    contexts = [Context(step, World(rank, size), seed, make_default_plan(part)) for rank in range(size)]
    run = part.reduce if reduce is None else reduce
    return lockstep([run(t, spec, s, c) for t, s, c in zip(tensors, states, contexts, strict=True)], meters)


def sent_bytes(part: Any, tensors: Sequence[Tensor]) -> float:
    """Bytes that rank 0 sends in one step, without headers."""
    meters = [Meter() for _ in tensors]
    run_step(part, tensors, meters=meters)
    return sum(traffic.sent_bytes for where, traffic in meters[0].rows.items() if where.layer == "layer")


def run_steps(part: Any, steps: Sequence[Sequence[Tensor]]) -> list[list[Any]]:
    """Run steps one after the other and return each step's results."""
    outs: list[list[Any]] = []
    for step, tensors in enumerate(steps):
        outs.append(run_step(part, tensors, [out.state for out in outs[-1]] if outs else None, step))
    return outs
