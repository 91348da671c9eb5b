"""The C kernel of `allocation`, as a function of tensors; see `calls`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ..allocation import check_allocation, trace_back
from .calls import _at


def solve_allocation(library: ctypes.CDLL, costs: Tensor, errors: Tensor, budget: int) -> Tensor:
    check_allocation(costs, errors, budget)
    layers, candidates = costs.shape
    tables = torch.empty(layers + 1, budget + 1, dtype=torch.float64)
    given = _at(costs, layers * candidates, torch.float64), _at(errors, layers * candidates, torch.int64)
    library.tw_cheapest(*given, layers, candidates, budget, tables.data_ptr())
    return trace_back(tables, costs, errors)
