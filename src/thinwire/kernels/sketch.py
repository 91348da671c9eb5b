"""Count sketches (Charikar et al., 2002) and peeling, which recovers a sum of sparse tensors from its sketch.

Three rows of cells that share nothing. A position has one cell in each row and a sign for each, by hashes that all
ranks derive from one key. A cell holds the signed sum of its positions' values. Where one position alone is left in a
cell, its value is read there and taken out of its two other cells, which may leave others alone in theirs.

On the CPU for every device, with numpy: few numbers, many small operations; C, where it was built, gives the same bits
(see `dispatch`). Which positions can be peeled follows from
positions and key alone. All sums that every rank must share are taken one by one in a fixed order: the same bits
everywhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import Key, derive_key
from .reference import _signed, mix32

_ROW_KEY = "sketch"  # frozen: makes the random bits

ROWS = 3  # of 3, 4 and 5 rows, 3 need the fewest cells: 1.222, 1.295 and 1.425 a position
_MANY = 10_000  # this many positions usually peel with 1.3 cells each; fewer need more


class PeelingOrder(NamedTuple):
    """The order in which positions are peeled. All are recovered exactly if none is left."""

    at: NDArray[np.int64]  # (3, positions): cells
    signs: NDArray[np.int64]
    rounds: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]  # positions that are read, and their cells
    left: Tensor  # bool per position: whether it stays unread


class PeeledValues(NamedTuple):
    """Values recovered by peeling."""

    values: Tensor  # per position, float64 (or int32); 0 if it is left
    rest: Tensor  # the cells without what was read; rounding errors only, if nothing is left


def cells_for(count: int) -> int:
    """Cells that usually peel for `count` positions: 1.3 each for many, 1.5 for few; a multiple of three."""
    many = -(-13 * max(count, _MANY) // 10) + 32  # enough for 10,000, so for fewer
    cells = min(many, -(-3 * count // 2) + 64) if count < _MANY else many
    return cells + -cells % ROWS


def table_cells(positions: Tensor, lanes: int = 1) -> int:
    """Cells for these positions: as many per lane as the fullest lane needs."""
    if lanes == 1:
        return cells_for(positions.numel())
    fullest = np.bincount(_items(positions) % lanes, minlength=1).max()
    return lanes * cells_for(int(fullest))


def sketch(values: Tensor, positions: Tensor, cells: int, key: Key, lanes: int = 1) -> Tensor:
    """(cells,) signed sums of the values at these positions: float64; of int32, int32 that wraps around."""
    at, signs = _places(_items(positions), cells, key, lanes)
    signed = signs * values.numpy(force=True).astype(np.float64)  # whole numbers below 2^53 stay exact
    sums = np.bincount(at.ravel(), signed.ravel(), minlength=cells).astype(np.float64)  # of nothing, numpy counts
    return torch.from_numpy(sums if values.is_floating_point() else sums.astype(np.int64).astype(np.int32))


def peeling_order(positions: Tensor, cells: int, key: Key, lanes: int = 1) -> PeelingOrder:
    """The order of peeling, which depends on positions and key only, so it is known before anything is sent.

    In rounds: all cells with one position are read at once, then subtracted. Depth first, rounding errors would grow
    along long chains (measured: 1.5e8 on values of 1e-3).
    """
    items = _items(positions)
    at, signs = _places(items, cells, key, lanes)
    degrees = np.bincount(at.ravel(), minlength=cells)
    # the sum of the numbers of a cell's positions names the last of them; below 2^53, so exact
    names = np.bincount(at.ravel(), np.tile(np.arange(items.size), ROWS), minlength=cells).astype(np.int64)
    left, rounds = np.ones(items.size, bool), []
    alone = np.flatnonzero(degrees == 1)
    while alone.size:
        found, first = np.unique(names[alone], return_index=True)  # a position may be alone in two cells
        rounds.append((found, alone[first]))
        left[found] = False
        touched = at[:, found].ravel()
        np.subtract.at(degrees, touched, 1)
        np.subtract.at(names, touched, np.tile(found, ROWS))
        alone = touched[degrees[touched] == 1]
    return PeelingOrder(at, signs, tuple(rounds), torch.from_numpy(left))


def peel(table: Tensor, order: PeelingOrder) -> PeeledValues:
    """Recover the values at an order's positions from a sum of sketches of these positions only."""
    at, signs, rounds, left = order
    rest: NDArray[Any] = table.numpy(force=True).astype(np.float64 if table.is_floating_point() else np.int32)
    values = np.zeros(left.numel(), rest.dtype)
    for found, cells in rounds:
        read = signs[cells // (table.numel() // ROWS), found] * rest[cells]
        values[found] = read
        np.subtract.at(rest, at[:, found].ravel(), (signs[:, found] * read).ravel())
    return PeeledValues(torch.from_numpy(values), torch.from_numpy(rest))


def median_estimate(table: Tensor, positions: Tensor, key: Key, lanes: int = 1) -> Tensor:
    """An estimate for every position: the median of its three signed cells, disturbed by others in these cells."""
    at, signs = _places(_items(positions), table.numel(), key, lanes)
    a, b, c = signs * table.numpy(force=True)[at]
    return torch.from_numpy(np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c)))


def words(items: NDArray[np.int64], key: Key) -> NDArray[np.int64]:
    """One hash per item, 0 ... 2^32 - 1."""
    low = (items ^ (items >> 32) * 0x9E3779B1).astype(np.int32)  # the upper half counts beyond 2^32 items only
    start, stride = np.int32(_signed(key)), np.int32(_signed((key >> 32) | 1))
    mixed: NDArray[np.int32] = mix32(mix32(low * stride + start))
    return mixed.astype(np.int64) & 0xFFFFFFFF


def check_cells(cells: int, lanes: int) -> None:
    """Raise ValueError for a number of cells that rows and lanes do not divide."""
    if cells <= 0 or cells % (ROWS * lanes):
        raise ValueError(f"sketch: cells must be a positive multiple of {ROWS * lanes}, got {cells}")


def row_keys(key: Key) -> list[Key]:
    """The hash keys of the three rows."""
    return [derive_key(key, _ROW_KEY, row) for row in range(ROWS)]


def _places(items: NDArray[np.int64], cells: int, key: Key, lanes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(3, items) cells and signs. With lanes, blocks of neighboring items are hashed, and each item keeps its lane."""
    check_cells(cells, lanes)
    width = cells // (ROWS * lanes)
    hashes = np.stack([words(items // lanes, row_key) for row_key in row_keys(key)])
    blocks = (hashes * width >> 32) + width * np.arange(ROWS)[:, None]
    return blocks * lanes + items % lanes, 1 - 2 * (hashes & 1)


def _items(positions: Tensor) -> NDArray[np.int64]:
    return positions.numpy(force=True)
