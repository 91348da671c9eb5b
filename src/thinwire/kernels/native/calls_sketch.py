"""The C kernels of kernels/sketch.py as functions of tensors; see `calls`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core import Key
from ..memory import empty
from ..sketch import ROWS, PeeledValues, PeelingOrder, check_cells, row_keys
from .calls import _at, _counter, _inside

_MAX_ITEMS = 1 << 32  # C numbers them in 32 bits


def _counters(key: Key) -> ctypes.Array[ctypes.c_uint32]:
    """Of all rows, one after another."""
    return (ctypes.c_uint32 * (2 * ROWS))(*(word for row_key in row_keys(key) for word in _counter(row_key)))


def sketch(library: ctypes.CDLL, values: Tensor, positions: Tensor, cells: int, key: Key, lanes: int = 1) -> Tensor:
    check_cells(cells, lanes)
    n, table = values.numel(), empty(cells, values.dtype).zero_()
    add = library.tw_sketch if values.is_floating_point() else library.tw_sketch_whole
    numbers, items = _at(values, n, values.dtype), _at(positions, n, torch.int64)
    add(numbers, items, n, cells, lanes, _counters(key), table.data_ptr())
    return table


def peeling_order(library: ctypes.CDLL, positions: Tensor, cells: int, key: Key, lanes: int = 1) -> PeelingOrder:
    check_cells(cells, lanes)
    n = positions.numel()
    if max(n, cells) >= _MAX_ITEMS:
        raise MemoryError(f"C kernels: at most {_MAX_ITEMS} positions and cells can be peeled, got {n} and {cells}")
    at, signs = (empty(ROWS * n, torch.int64) for _ in range(2))
    found, read, ends = (empty(n, torch.int64) for _ in range(3))
    left = torch.empty(n, dtype=torch.bool)
    made = at, signs, found, read, ends, left
    items, addresses = _at(positions, n, torch.int64), [tensor.data_ptr() for tensor in made]
    rounds = library.tw_peeling_order(items, n, cells, lanes, _counters(key), *addresses)
    if rounds < 0:
        raise MemoryError(f"C kernels: no memory to peel {n} positions from {cells} cells")
    stops = ends[:rounds].tolist()
    pairs = [(found.numpy()[a:b], read.numpy()[a:b]) for a, b in zip([0, *stops], stops, strict=False)]
    return PeelingOrder(at.numpy().reshape(ROWS, n), signs.numpy().reshape(ROWS, n), tuple(pairs), left)


def peel(library: ctypes.CDLL, table: Tensor, order: PeelingOrder) -> PeeledValues:
    """All rounds at once, of which there are some: in a cell that one is read in, no other of its round has a part."""
    whole, cells, n = not table.is_floating_point(), table.numel(), order.left.numel()
    rest = table.to(torch.int32 if whole else torch.float64, copy=True).flatten()
    values = torch.zeros(n, dtype=rest.dtype)
    found, read = (_concatenate([pair[side] for pair in order.rounds]) for side in range(2))
    places = [_at(torch.from_numpy(part), ROWS * n, torch.int64) for part in (order.at, order.signs)]
    steps = found.numel()
    run = library.tw_peel_whole if whole else library.tw_peel
    reading = _at(found, steps, torch.int64), _at(read, steps, torch.int64), steps
    _inside(run(rest.data_ptr(), cells, *places, n, *reading, values.data_ptr()), cells)
    return PeeledValues(values, rest)


def _concatenate(parts: Sequence[NDArray[np.int64]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))
