"""What a topology or a controller shows, capability by capability. None: it cannot be seen on this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..aggregators import Dense, GatherMean
from ..compressors import TopK
from ..core import (
    Capability,
    CompositionError,
    Context,
    LayerObservation,
    Menu,
    Reduced,
    TensorSpec,
    Topology,
    World,
    loopback,
)
from .compressor_observations import has_methods
from .probes import gaussian

SIZES = (2, 4, 8)
LAYERS = (TensorSpec("a", (6, 5)), TensorSpec("b", (7,)))
CHOICES = tuple((spec, Menu((GatherMean(TopK(density=0.1)), Dense()))) for spec in LAYERS)
EXCHANGES = 3000  # a controller that has looked at nothing in so many never does


def has_period(topology: Any) -> bool:
    if not has_methods(topology, "period"):
        return False
    return all(
        topology.weights(World(rank, size), step) == topology.weights(World(rank, size), step + topology.period(size))
        for size in _sizes(topology)
        for rank in range(size)
        for step in range(topology.period(size))
    )


def supports_one_peer(topology: Any) -> bool:
    """With one_peer each rank hears one other at a step, and over a period all that it hears without."""
    if not is_dataclass(topology) or "one_peer" not in [field.name for field in fields(topology)]:
        return False
    turns: Any = replace(topology, one_peer=True)  # type: ignore[type-var]
    whole: Any = replace(topology, one_peer=False)  # type: ignore[type-var]
    for size in _sizes(whole):
        heard = [set(turns.weights(World(0, size), step)) - {0} for step in range(turns.period(size))]
        if max(map(len, heard)) > 1 or set().union(*heard) != set(whole.weights(World(0, size), 0)) - {0}:
            return False
    return True


def _sizes(topology: Topology) -> list[int]:
    """Those that it takes."""
    found = []
    for size in SIZES:
        try:
            topology.weights(World(0, size), 0)
        except CompositionError:
            continue
        found.append(size)
    return found


def takes_menus(controller: Any) -> bool:
    return has_methods(controller, "given") and type(controller.given(CHOICES)) is type(controller)


def reports(controller: Any) -> bool:
    if not has_methods(controller, "explained"):
        return False
    informed = _informed(controller)
    told = informed.explained(informed.init(LAYERS)[1])
    return isinstance(told, Mapping) and "decisions" in told


def resizes_state(controller: Any) -> bool:
    if not has_methods(controller, "elsewhere"):
        return False
    informed = _informed(controller)
    state = informed.init(LAYERS)[1]
    return type(informed.elsewhere(state)) is type(state)


def never_observes(controller: Any) -> bool:
    """Its state is the same after tensors were shown to it, in as many exchanges as controllers let pass."""
    informed = _informed(controller)
    plan, state = informed.init(LAYERS)
    for step in range(EXCHANGES):
        ctx = Context(step, World(0, 1), plan=plan)
        plan, state = loopback(informed.replan(plan, state, ctx))
        for spec in LAYERS:
            after = informed.observe(spec, _seen(gaussian(*spec.shape, seed=step % 7)), state, ctx)
            if after is not state:
                return False
    return True


def _informed(controller: Any) -> Any:
    return controller.given(CHOICES) if takes_menus(controller) else controller


def _seen(tensor: Tensor) -> LayerObservation:
    nothing: Reduced[Any] = Reduced(torch.zeros(0), torch.zeros(0), ())
    return LayerObservation(tensor, nothing, lambda: tensor)


TOPOLOGY_OBSERVATIONS = {Capability.HAS_PERIOD: has_period, Capability.SUPPORTS_ONE_PEER: supports_one_peer}
CONTROLLER_OBSERVATIONS = {
    Capability.TAKES_MENUS: takes_menus,
    Capability.REPORTS: reports,
    Capability.RESIZES_STATE: resizes_state,
    Capability.NEVER_OBSERVES: never_observes,
}
