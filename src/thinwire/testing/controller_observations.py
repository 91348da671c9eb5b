"""Observed capabilities of controllers. None: the capability cannot be observed on this controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..aggregators import Dense, GatherMean
from ..compressors import TopK
from ..core import Capability, Context, LayerObservation, Menu, Reduced, TensorSpec, World, loopback
from .compressor_observations import has_methods
from .probes import gaussian

LAYERS = (TensorSpec("a", (6, 5)), TensorSpec("b", (7,)))
MENUS = tuple((spec, Menu((GatherMean(TopK(density=0.1)), Dense()))) for spec in LAYERS)
EXCHANGES = 3000  # a controller that observes nothing in so many exchanges never does


def takes_menus(controller: Any) -> bool:
    return has_methods(controller, "with_menus") and type(controller.with_menus(MENUS)) is type(controller)


def reports(controller: Any) -> bool:
    if not has_methods(controller, "report"):
        return False
    bound = _bind_menus(controller)
    report = bound.report(bound.init(LAYERS)[1])
    return isinstance(report, Mapping) and "decisions" in report


def resizes_state(controller: Any) -> bool:
    if not has_methods(controller, "on_world_resize"):
        return False
    bound = _bind_menus(controller)
    state = bound.init(LAYERS)[1]
    return type(bound.on_world_resize(state)) is type(state)


def never_observes(controller: Any) -> bool:
    """`observe` returns the same state in as many exchanges as controllers wait before a decision."""
    bound = _bind_menus(controller)
    plan, state = bound.init(LAYERS)
    for step in range(EXCHANGES):
        ctx = Context(step, World(0, 1), plan=plan)
        plan, state = loopback(bound.replan(plan, state, ctx))
        for spec in LAYERS:
            after = bound.observe(spec, _make_observation(gaussian(*spec.shape, seed=step % 7)), state, ctx)
            if after is not state:
                return False
    return True


def _bind_menus(controller: Any) -> Any:
    return controller.with_menus(MENUS) if takes_menus(controller) else controller


def _make_observation(tensor: Tensor) -> LayerObservation:
    empty: Reduced[Any] = Reduced(torch.zeros(0), torch.zeros(0), ())
    return LayerObservation(tensor, empty, lambda: tensor)


CONTROLLER_OBSERVATIONS = {
    Capability.TAKES_MENUS: takes_menus,
    Capability.REPORTS: reports,
    Capability.RESIZES_STATE: resizes_state,
    Capability.NEVER_OBSERVES: never_observes,
}
