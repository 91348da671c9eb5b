"""Overlap of the coordinates that Top-k selects over the whole model and layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from thinwire.drivers.driver import Driver
from thinwire.kernels import largest_magnitudes

from ...tasks import make_task
from ...tasks.splits import Split

DENSITIES = (0.001, 0.01, 0.05, 0.1)


def measure_overlap(driver: Driver, argument: Mapping[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """Return means over ten points in the dense training of one worker."""
    task = make_task(argument["task"]["name"], argument["task"]["settings"], argument["data"])
    learner = task.learner(0, 1, Split.parse("iid"), 1)
    optimizer = torch.optim.SGD(list(learner.parameters.values()), lr=0.1, momentum=0.9)
    steps, found = argument["steps"], []
    for step in range(steps):
        loss, gradients = learner.gradients(step)
        if step % max(1, steps // 10) == 0:
            tell({"step": step, "steps": steps, "loss": loss, "bytes": 0})
            found += [{"density": d, **compute_overlap(list(gradients.values()), d)} for d in DENSITIES]
        for name, parameter in learner.parameters.items():
            parameter.grad = gradients[name]
        optimizer.step()
    means = []
    for density in DENSITIES:
        rows = [row for row in found if row["density"] == density]
        means.append({key: sum(row[key] for row in rows) / len(rows) for key in rows[0]})
    return {"rows": means}


def compute_overlap(tensors: list[Tensor], density: float) -> dict[str, float]:
    """Return shares: of common coordinates, of the energy each selection keeps, of layers without any coordinate."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    global_mask = torch.zeros(flat.numel(), dtype=torch.bool)
    global_mask[largest_magnitudes(flat, max(1, round(density * flat.numel())))] = True
    layer_mask = torch.zeros_like(global_mask)
    starts = [0, *torch.tensor([t.numel() for t in tensors]).cumsum(0).tolist()]
    for start, tensor in zip(starts, tensors, strict=False):
        chosen = largest_magnitudes(tensor.flatten(), max(1, round(density * tensor.numel())))
        layer_mask[start + chosen] = True
    squares, total = flat.double().square(), float(flat.double().square().sum()) or 1.0
    starved = [not bool(global_mask[a:b].any()) for a, b in pairwise(starts)]
    return {
        "both": float((global_mask & layer_mask).sum() / (global_mask | layer_mask).sum()),
        "energy_global": float(squares[global_mask].sum()) / total,
        "energy_layers": float(squares[layer_mask].sum()) / total,
        "starved": sum(starved) / len(starved),
    }
