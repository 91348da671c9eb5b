"""Which coordinates Top-k takes over the whole model, and which layer by layer."""

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


def measured(driver: Driver, argument: Mapping[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """Looked at ten times while one worker trains with the whole gradient."""
    task = make_task(argument["task"]["name"], argument["task"]["settings"], argument["data"])
    learner = task.learner(0, 1, Split.parse("iid"), 1)
    optimizer = torch.optim.SGD(list(learner.parameters.values()), lr=0.1, momentum=0.9)
    steps, found = argument["steps"], []
    for step in range(steps):
        loss, gradients = learner.gradients(step)
        if step % max(1, steps // 10) == 0:
            tell({"step": step, "steps": steps, "loss": loss, "bytes": 0})
            found += [{"density": d, **overlap(list(gradients.values()), d)} for d in DENSITIES]
        for name, parameter in learner.parameters.items():
            parameter.grad = gradients[name]
        optimizer.step()
    means = []
    for density in DENSITIES:
        some = [row for row in found if row["density"] == density]
        means.append({key: sum(row[key] for row in some) / len(some) for key in some[0]})
    return {"rows": means}


def overlap(tensors: list[Tensor], density: float) -> dict[str, float]:
    """Shares: of equal coordinates, of energy either way keeps, of layers that get no coordinate at all."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    whole = torch.zeros(flat.numel(), dtype=torch.bool)
    whole[largest_magnitudes(flat, max(1, round(density * flat.numel())))] = True
    apart = torch.zeros_like(whole)
    starts = [0, *torch.tensor([t.numel() for t in tensors]).cumsum(0).tolist()]
    for start, tensor in zip(starts, tensors, strict=False):
        chosen = largest_magnitudes(tensor.flatten(), max(1, round(density * tensor.numel())))
        apart[start + chosen] = True
    squares, total = flat.double().square(), float(flat.double().square().sum()) or 1.0
    starved = [not bool(whole[a:b].any()) for a, b in pairwise(starts)]
    return {
        "both": float((whole & apart).sum() / (whole | apart).sum()),
        "energy_global": float(squares[whole].sum()) / total,
        "energy_layers": float(squares[apart].sum()) / total,
        "starved": sum(starved) / len(starved),
    }
