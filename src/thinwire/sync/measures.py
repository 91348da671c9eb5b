"""Distances between replicas and their mean, as programs: all ranks get the same number."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..core import AllReduce, Label, Program, World

Tensors = Mapping[str, Tensor]


def consensus(parameters: Tensors, world: World, step: int = 0) -> Program[float]:
    """Consensus distance (1/n) sum |w_i - mean w|^2 of the ranks' weights; 0 for equal ones, up to rounding."""
    _, distance = yield from mean_and_consensus(parameters, world, step)
    return distance


def mean_and_consensus(parameters: Tensors, world: World, step: int = 0) -> Program[tuple[dict[str, Tensor], float]]:
    """The mean of all ranks' tensors, each in its own dtype, and their consensus distance; one all-reduce.

    The distance is the mean of |w_i|^2 minus |mean w|^2, in float64 because the terms almost cancel when ranks agree.
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
    """Relative drift sqrt(sum |w_i - anchor_i|^2 / sum |anchor_i|^2) over all ranks; an all-reduce of 16 bytes."""
    moved = sum(float((parameters[n].detach().double() - a.double()).square().sum()) for n, a in anchors.items())
    size = sum(float(a.double().square().sum()) for a in anchors.values())
    total = yield _reduce(torch.tensor([moved, size], dtype=torch.float64), "drift", step)
    moved, size = total.tolist()
    return math.sqrt(moved / size) if size > 0 else math.inf if moved > 0 else 0.0


def reduce_any(flag: bool, step: int = 0) -> Program[bool]:
    """Whether the flag is set on any rank; the same answer on all."""
    total = yield _reduce(torch.tensor([float(flag)]), "agree", step)
    return bool(total.item() > 0)


def _flat(parameters: Tensors) -> Tensor:
    pieces = [t.detach().to("cpu", torch.float64).flatten() for t in parameters.values()]
    return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.float64)


def _reduce(tensor: Tensor, kind: str, step: int) -> AllReduce:
    return AllReduce(tensor, labels=(Label("", kind, tensor.nbytes, 8.0 * tensor.nbytes),), step=step)
