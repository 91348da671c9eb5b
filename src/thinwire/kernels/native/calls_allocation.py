"""The C kernels of `allocation`, as a function of tensors; see `calls`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ..allocation import NONE, check_allocation
from .calls import _at

_OPTION_NUMBERS = 3  # of 8 bytes: error, cost, index


def solve_allocation(library: ctypes.CDLL, costs: Tensor, errors: Tensor, budget: int) -> Tensor:
    check_allocation(costs, errors, budget)
    layers, options = costs.shape
    given = _at(costs, layers * options, torch.float64), _at(errors, layers * options, torch.int64)
    kept = torch.empty(layers * options * _OPTION_NUMBERS, dtype=torch.int64)
    counts, widths, chosen = (torch.empty(layers + 1, dtype=torch.int64) for _ in range(3))
    at = kept.data_ptr(), counts.data_ptr(), widths.data_ptr()
    cells = library.tw_keep_options(*given, layers, options, budget, *at)
    if not cells:
        return NONE.clone()
    tables = torch.empty(cells, dtype=torch.float64)
    library.tw_cheapest(*at, layers, options, tables.data_ptr(), chosen.data_ptr())
    return chosen[:layers]
