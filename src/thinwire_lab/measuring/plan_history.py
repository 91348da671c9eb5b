"""The plans of a run (layer -> option) with their first steps, and what the controller cost."""

from __future__ import annotations

from typing import Any

import torch

from thinwire.controller_report import option_texts
from thinwire.controllers.estimates import compute_bytes, size_varies
from thinwire.core import Key, Menu, TensorSpec, all_reduce_bytes
from thinwire.drivers.meter import Meter
from thinwire.exchange import Exchanger


def make_plan_history(exchanger: Exchanger, size: int) -> list[dict[str, Any]]:
    """[{"step", "layers": {name: {"option": text, "bytes": expected of a rank, "saving"}}}], from the first plan on."""
    if not exchanger.menus:
        return []
    first, _ = exchanger.controller.init(list(exchanger.layers.values()))
    costs = {spec.name: _expected_bytes(spec, menu, size) for spec, menu in exchanger.menus}
    dense = {s.name: all_reduce_bytes(s.numel * s.dtype.itemsize, max(2, size)) for s, _ in exchanger.menus}
    history = []
    for step, plan in [(0, first), *exchanger.plans]:
        texts = option_texts(exchanger, plan)
        sent = {name: costs[name][plan[name]] for name in texts}
        history.append({
            "step": step,
            "layers": {
                name: {"option": text, "bytes": sent[name], "saving": _saving(dense[name], sent[name])}
                for name, text in texts.items()
            },
        })  # fmt: skip
    return history


def _saving(dense: float, sent: float | None) -> float | None:
    return dense / sent if sent else None


def _expected_bytes(spec: TensorSpec, menu: Menu, size: int) -> list[float | None]:
    """Bytes of each option; None where the size depends on the values."""
    found = compute_bytes(menu.options, torch.zeros(spec.shape, dtype=spec.dtype), spec, size, Key(0)).tolist()
    return [None if size_varies(option) else cost for option, cost in zip(menu.options, found, strict=True)]


def report_controller_cost(exchanger: Exchanger, meter: Meter) -> dict[str, Any]:
    """Rank 0's decisions, seconds, bytes of statistics and plans, the controller's report; {} without a controller."""
    if not exchanger.menus:
        return {}
    spent = meter.sum_by("kind").get("plan")
    return exchanger.controller_report() | {"bytes": 0.0 if spent is None else spent.sent_bytes}
