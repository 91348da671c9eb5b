"""E1: logistic regression on the mushrooms with compressed gradients that are rounded to powers of two (S0).

One worker, ridge 0.1, step 1/2.5, k = 22 of 112, until the gradient has shrunk by 1e-6. S0 counts ceil(log2(p + 1))
bits for a sent value 2^-p: no sign, no position, no scale. Those `legacy bits` are reproduced beside the honest bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...catalog import parse
from ...core import Program, TensorSpec, World
from ...drivers.lockstep import lockstep
from ...drivers.meter import Meter
from ...exchange import Exchanger
from ..results import Curve, plain, versions
from ..tasks.logistic import Logistic, mushrooms

COMPOSITION = 'topk(k=22, values=power2(rule="log", ceiling=0))'
RIDGE, SMOOTHNESS, TOLERANCE, MOST_STEPS = 0.1, 2.5, 1e-6, 20_000
PUBLISHED = {"iterations": 1126, "legacy_bits": 111_178}


def start() -> Tensor:
    """S0's starting point: numpy's seed 18, scaled to length one half."""
    point = np.random.RandomState(18).rand(112)
    return torch.tensor(point / np.linalg.norm(point) * 0.5)


def legacy_bits(sent: Tensor) -> int:
    """Sum of ceil(log2(p + 1)) over the values 2^-p that were sent."""
    powers = -torch.log2(sent[sent != 0].abs()).round().clamp(max=0)
    return sum(math.ceil(math.log2(p + 1)) for p in powers.tolist())


def descend(
    problem: Logistic, exchanger: Exchanger, curve: Curve, tell: Callable[[int], None]
) -> Program[dict[str, int]]:
    weights, bits = start(), 0
    gradient = problem.gradient(weights)
    goal = TOLERANCE * float(gradient.norm())

    def look(step: int) -> None:
        curve.add(step, float(problem.loss(weights)), float(gradient.norm()), float(problem.accuracy(weights)))

    for step in range(MOST_STEPS):
        look(step)
        agreed = yield from exchanger.round({"weights": gradient}, step, World(0, 1))
        bits += legacy_bits(agreed["weights"])
        weights = weights - agreed["weights"] / SMOOTHNESS
        gradient = problem.gradient(weights)
        tell(step)
        if float(gradient.norm()) <= goal:
            break
    look(step + 1)
    return {"iterations": step, "legacy_bits": bits}


def run(progress: Callable[[str, int, int], None], command: str) -> dict[str, Any]:
    problem = mushrooms(RIDGE, torch.float64)
    meter = Meter()
    curve = Curve(meter)
    exchanger = Exchanger([TensorSpec("weights", (112,), torch.float64)], parse(COMPOSITION))
    total = PUBLISHED["iterations"] + 1
    program = descend(problem, exchanger, curve, lambda step: progress("E1, Top-k", min(step + 1, total), total))
    (found,) = lockstep([program], [meter])
    found["payload_bytes"] = int(meter.total().payload_bytes)
    checks = [
        {"text": f"{name}: {found[name]:,}", "holds": found[name] == value, "detail": f"published: {value:,}"}
        for name, value in PUBLISHED.items()
    ]
    measured = curve.to_dict() | {"steps_to_target": None}
    label = {"group": "1 worker, k = 22 of 112", "label": "Top-k, then Q", "composition": COMPOSITION}
    return {
        "name": "e1-topk", "title": "E1: Top-k with values rounded to powers of two",
        "about": (__doc__ or "").replace("\n", " "), "command": command,
        "versions": versions(), "found": found, "checks": checks, "target_loss": None,
        "config": {"ridge": RIDGE, "step": 1 / SMOOTHNESS, "tolerance": TOLERANCE, "composition": COMPOSITION},
        "runs": [plain(label | {"workers": 1, "driver": "lockstep"} | measured)],
    }  # fmt: skip
