"""Real AdamW moments: a GPT is trained, then every host continues on its own part of the text with its own AdamW."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinwire import checkpoint
from thinwire.optimizer_state import AdamMoments

from ...tasks.base import Learner, Task
from ...tasks.splits import Split

LR = 1e-3
Pairs = dict[str, Tensor]  # (2, *shape) by layer: m and v


def capture(
    task: Task, hosts: int, common: int, own: int, folder: Path, tell: Callable[[int, int], None]
) -> list[Pairs]:
    """Return each host's moments after `common` shared and `own` separate steps. Stored hosts are read."""
    steps, iid = common + hosts * own, Split.parse("iid")
    if not checkpoint.steps(folder / "common"):
        learner = task.learner(0, 1, iid, 1)
        optimizer = make_adamw(learner)
        for step in range(common):
            train_step(learner, optimizer, step)
            tell(step, steps)
        weights = {name: p.detach() for name, p in learner.parameters.items()}
        checkpoint.save(folder / "common", {"weights": weights, "optimizer": optimizer.state_dict()}, step=0)
    found = []
    for host in range(hosts):
        place = folder / f"host{host}"
        if not checkpoint.steps(place):
            pairs = train_host(task.learner(host, hosts, iid, 1), checkpoint.load(folder / "common"), common, own)
            checkpoint.save(place, pairs, step=0)
        found.append(dict(checkpoint.load(place)))
        tell(common + (host + 1) * own, steps)
    return found


def train_host(learner: Learner, state: dict[str, Any], begin: int, steps: int) -> Pairs:
    optimizer = make_adamw(learner)
    with torch.no_grad():
        for name, parameter in learner.parameters.items():
            parameter.copy_(state["weights"][name])
    optimizer.load_state_dict(state["optimizer"])
    for step in range(begin, begin + steps):
        train_step(learner, optimizer, step)
    moments = AdamMoments(optimizer, learner.parameters)
    return {name: moments.pair(name) for name in moments.parameters}


def make_adamw(learner: Learner) -> torch.optim.AdamW:
    return torch.optim.AdamW(list(learner.parameters.values()), lr=LR, weight_decay=0.01)


def train_step(learner: Learner, optimizer: torch.optim.Optimizer, step: int) -> None:
    _, gradients = learner.gradients(step)
    for name, parameter in learner.parameters.items():
        parameter.grad = gradients[name]
    optimizer.step()
