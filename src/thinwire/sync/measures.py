"""How far replicas are apart, and their mean: programs, so that all ranks get the same number."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..core import AllReduce, Label, Program, World

Tensors = Mapping[str, Tensor]


def consensus(parameters: Tensors, world: World, step: int = 0) -> Program[float]:
    """(1/n) sum |w_i - mean w|^2: how far the ranks' weights are apart; 0 for equal ones, up to rounding."""
    _, distance = yield from mean_and_consensus(parameters, world, step)
    return distance


def mean_and_consensus(parameters: Tensors, world: World, step: int = 0) -> Program[tuple[dict[str, Tensor], float]]:
    """The mean of all ranks' tensors, each in its own type, and how far they are from it: one all-reduce.

    It is the mean of |w_i|^2 less |mean w|^2. In float64, because little is left of the difference when ranks agree.
    """
    flat = _flat(parameters)
    sent = torch.cat([flat, flat.square().sum().reshape(1)])
    total = (yield _reduce(sent, "measure", step)) / world.size
    means, square = total[:-1], float(total[-1])
    distance = max(0.0, square - float(means.square().sum()))
    pieces = means.split([t.numel() for t in parameters.values()])
    mean = {n: p.view(t.shape).to(t.dtype).to(t.device) for (n, t), p in zip(parameters.items(), pieces, strict=True)}
    return mean, distance


def drift(parameters: Tensors, anchors: Tensors, step: int = 0) -> Program[float]:
    """sqrt(sum |w_i - anchor_i|^2 / sum |anchor_i|^2) over all ranks: what a drift policy looks at, 16 bytes."""
    gone = sum(float((parameters[n].detach().double() - a.double()).square().sum()) for n, a in anchors.items())
    size = sum(float(a.double().square().sum()) for a in anchors.values())
    total = yield _reduce(torch.tensor([gone, size], dtype=torch.float64), "drift", step)
    gone, size = total.tolist()
    return math.sqrt(gone / size) if size > 0 else math.inf if gone > 0 else 0.0


def anywhere(here: bool, step: int = 0) -> Program[bool]:
    """Whether it is so on some rank; all are told the same."""
    total = yield _reduce(torch.tensor([float(here)]), "agree", step)
    return bool(total.item() > 0)


def _flat(parameters: Tensors) -> Tensor:
    pieces = [t.detach().to("cpu", torch.float64).flatten() for t in parameters.values()]
    return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.float64)


def _reduce(tensor: Tensor, kind: str, step: int) -> AllReduce:
    return AllReduce(tensor, labels=(Label("", kind, tensor.nbytes, 8.0 * tensor.nbytes),), step=step)
