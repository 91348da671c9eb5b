"""Homomorphic compression (Li et al., 2024): all-reduce count sketches of sparse tensors, then peel their sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import (
    AllReduce,
    Capabilities,
    Capability,
    CompositionError,
    Compressor,
    Context,
    Key,
    Program,
    ProtocolError,
    Reduced,
    Request,
    TensorSpec,
    all_reduce_bytes,
    derive_key,
    estimate_compressor_errors,
    fuse,
    inherit_capabilities,
    saturate,
)
from ..core.logs import get_logger
from ..kernels import PeelingOrder, cells_for, median_estimate, peel, peeling_order, sketch, table_cells
from ..kernels.sketch import ROWS
from .sparse_index import (
    BitmapIndex,
    SparseIndex,
    all_reduce_positions,
    check_index,
    compress_own,
    expected_union,
    expected_union_index_bytes,
    index_request,
    make_index,
)
from .value_scale import ValueScale, all_reduce_integer_scale, all_reduce_values, float_scale

log = get_logger(__name__)
ON_FAILURE = ("values", "median")
_MAX_TRIES = 8  # of keys: with few values, one key in a hundred fails because two values share all their cells
_SKETCH_KEY = "sketch"  # frozen: makes the random bits


class SketchState(NamedTuple):
    """Counts since the start, the same on all ranks."""

    peeled: int = 0  # values read from sketches
    unpeeled: int = 0  # values that peeling could not read
    failures: int = 0  # exchanges in which that happened


class SummedSketch(NamedTuple):
    """The sum of all ranks' sketches, and the order in which to peel it."""

    table: Tensor
    order: PeelingOrder
    key: Key


_ALWAYS = frozenset({Capability.WRAPS_COMPRESSOR, Capability.SUMS_NONZEROS})


@dataclass(frozen=True)
class SketchSum:
    """All-reduce a bitmap of nonzero positions by OR, then count sketches of the values: d + 1.3·b·n bits, all-reduced.

    n is the size of the union of what ranks send. Peeling recovers all n sums, up to rounding. Whether it succeeds
    follows from the index, so all ranks take the first key with which it does. Where a sketch would be longer than the
    tensor, values are sent instead.

    Args:
        compressor: what it leaves nonzero is sent.
        cells: size of the sketch as a fraction of d; the sketch then does not wait for the index, and peeling fails if
            n is too large for it. None takes as many cells as n needs.
        index: "bitmap", or "bloom", which is shorter where few coordinates are sent.
        false_positive_rate: fraction of the zeros that a Bloom filter takes for sent ones.
        lanes: 1024 keeps neighboring values together, for large layers; some lanes then fail.
        exact: send integers, so that sums are exact in any order.
        on_failure: values that could not be peeled are sent again ("values") or estimated ("median"); both are counted
            and reported.
    """

    compressor: Compressor
    cells: float | None = None
    index: str = "bitmap"
    false_positive_rate: float = 0.001
    lanes: int = 1
    exact: bool = False
    on_failure: str = "values"

    def __post_init__(self) -> None:
        check_index("SketchSum", self.index, self.false_positive_rate)
        if self.cells is not None and not 0 < self.cells < 1:
            raise CompositionError(
                f"SketchSum: cells must be a fraction of the tensor between 0 and 1, got {self.cells}; 1.5 times the "
                "density of the union is usual, None takes as many as are needed"
            )
        if self.lanes < 1:
            raise CompositionError(f"SketchSum: lanes must be at least 1, got {self.lanes}; 1024 suits large layers")
        if self.on_failure not in ON_FAILURE:
            raise CompositionError(
                f"SketchSum: on_failure must be one of {', '.join(ON_FAILURE)}, got {self.on_failure!r}; use values"
            )

    @cached_property
    def capabilities(self) -> Capabilities:
        capabilities, estimates = _ALWAYS, self.cells is not None and self.on_failure == "median"
        if self.lanes == 1:  # expected_bytes does not count the padding of lanes
            capabilities |= inherit_capabilities(self.compressor, Capability.EXPECTS_BYTES)
        if not estimates:
            capabilities |= inherit_capabilities(self.compressor, Capability.ESTIMATES_ERRORS)
        return capabilities if estimates and self.index == "bitmap" else capabilities | {Capability.VARIABLE_SIZE}

    def init(self, spec: TensorSpec, key: Key) -> SketchState:
        return SketchState()

    def expected_bytes(self, spec: TensorSpec, size: int) -> float:
        """If ranks select independently; what a sketch of fixed size cannot hold is sent again."""
        union, itemsize = expected_union(self.compressor, spec, size), 4 if self.exact else spec.work_dtype.itemsize
        index = expected_union_index_bytes(union, self.index, self.false_positive_rate, spec, size)
        if self.cells is None:
            cells = cells_for(math.ceil(union))
            return index + all_reduce_bytes(itemsize * (cells if cells < spec.numel else union), size)
        cells = self.fixed_cells(spec.numel)
        if cells >= spec.numel:
            return all_reduce_bytes(itemsize * spec.numel, size)
        again = union if self.on_failure == "values" and cells < cells_for(math.ceil(union)) else 0.0
        return index + all_reduce_bytes(itemsize * (cells + again), size)

    def estimate_errors(
        self, tensor: Tensor, spec: TensorSpec, options: Sequence[Any], key: Key, exact: bool
    ) -> Sequence[float | None] | Tensor:
        return estimate_compressor_errors(self, tensor, spec, options, key, exact)

    def reduce(
        self, tensor: Tensor, spec: TensorSpec, state: SketchState, ctx: Context
    ) -> Program[Reduced[SketchState]]:
        flat = compress_own(self.compressor, tensor, spec, ctx)
        value = torch.zeros_like(flat)
        if not spec.numel:
            return Reduced(value.view(spec.shape), flat.view(spec.shape), state)
        scale = (yield from all_reduce_integer_scale(flat, spec, ctx)) if self.exact else float_scale(spec, ctx)
        sent = saturate((scale.encode(flat).double() / scale.encode_scale).to(spec.work_dtype)) if self.exact else flat
        exchange = self._index_then_sketch if self.cells is None else self._index_with_sketch
        positions, summed = yield from exchange(flat, scale, spec, ctx)
        if summed is None:
            kind = "dense" if positions.numel() == spec.numel else "values"
            sums = yield from all_reduce_values(flat[positions], scale, spec, kind)
        else:
            sums, is_unpeeled = self._peel(summed, positions, spec, ctx)
            unpeeled = positions[is_unpeeled]
            if unpeeled.numel():
                _warn(state, spec, ctx, unpeeled.numel(), positions.numel(), summed.table.numel())
            if self.on_failure == "values":
                repaired = yield from all_reduce_values(flat[unpeeled], scale, spec, "repair")
                sums[is_unpeeled] = repaired.to(sums.dtype)
            else:  # all ranks count the estimate as sent, so that its error stays in their residuals
                sent = sent.index_put((unpeeled,), scale.decode_mean(sums[is_unpeeled], spec))
            state = _count(state, unpeeled.numel(), positions.numel())
        value[positions] = scale.decode_mean(sums, spec)
        return Reduced(value.view(spec.shape), sent.view(spec.shape), state)

    def _index_then_sketch(
        self, flat: Tensor, scale: ValueScale, spec: TensorSpec, ctx: Context
    ) -> Program[tuple[Tensor, SummedSketch | None]]:
        """First the positions, then a sketch of the size they need; none if that would be longer than the tensor."""
        positions = yield from all_reduce_positions(flat, self.index, self.false_positive_rate, spec, ctx)
        cells = table_cells(positions, self.lanes)
        if cells >= spec.numel or not positions.numel():
            return positions, None
        for salt in range(_MAX_TRIES if self.lanes == 1 else 1):  # of many lanes, some fail with every key
            key = derive_key(ctx.key(spec.name), _SKETCH_KEY, salt)
            order = peeling_order(positions, cells, key, self.lanes)
            if not order.left.any():
                break
        table = yield self._sketch_request(flat, cells, scale, spec, key)
        return positions, SummedSketch(table, order, key)

    def _index_with_sketch(
        self, flat: Tensor, scale: ValueScale, spec: TensorSpec, ctx: Context
    ) -> Program[tuple[Tensor, SummedSketch | None]]:
        """Index and a sketch of fixed size in one request; no sketch if the dense tensor would be shorter."""
        cells = self.fixed_cells(spec.numel)
        if cells >= spec.numel:
            return torch.arange(spec.numel, device=flat.device), None
        index: SparseIndex = BitmapIndex(spec.numel)
        if self.index == "bloom":
            index = make_index(cells * 10 // 13, self.false_positive_rate, spec, ctx)  # the sketch can hold no more
        key = derive_key(ctx.key(spec.name), _SKETCH_KEY, 0)
        requests = index_request(index, flat, spec), self._sketch_request(flat, cells, scale, spec, key)
        bits, table = yield from fuse([_issue(request) for request in requests])
        positions = index.decode(bits)
        return positions, SummedSketch(table, peeling_order(positions, cells, key, self.lanes), key)

    def fixed_cells(self, numel: int) -> int:
        """Cells of a layer if `cells` is a fraction: at least what one value needs, the same in every row and lane."""
        assert self.cells is not None
        min_cells, multiple = max(math.ceil(self.cells * numel), cells_for(1)), ROWS * self.lanes
        return min_cells + -min_cells % multiple

    def _sketch_request(self, flat: Tensor, cells: int, scale: ValueScale, spec: TensorSpec, key: Key) -> AllReduce:
        own = flat.nonzero().flatten()
        return scale.sum_request(sketch(scale.encode(flat[own]), own, cells, key, self.lanes), spec, "sketch")

    def _peel(self, summed: SummedSketch, positions: Tensor, spec: TensorSpec, ctx: Context) -> tuple[Tensor, Tensor]:
        """Sums at the positions, and which of them could not be peeled (and are zero, or estimated)."""
        table, order, key = summed
        values, rest = peel(table, order)
        left = order.left
        if self.exact and not left.any() and rest.any():
            raise ProtocolError(
                f"step {ctx.step}: the sketch of {spec.name} is not empty after peeling; a message was damaged"
            )
        if self.on_failure == "median" and left.any():
            values[left] = median_estimate(rest, positions.cpu()[left], key, self.lanes)
        return values.to(spec.device), left.to(spec.device)


def _issue(request: Request) -> Program[Tensor]:
    return (yield request)  # type: ignore[no-any-return]


def _count(state: SketchState, unpeeled: int, count: int) -> SketchState:
    return SketchState(state.peeled + count - unpeeled, state.unpeeled + unpeeled, state.failures + (unpeeled > 0))


def _warn(state: SketchState, spec: TensorSpec, ctx: Context, unpeeled: int, count: int, cells: int) -> None:
    """Once per layer, on rank 0: all ranks know the same. The state counts how often it happened."""
    if state.failures == 0 and ctx.world.rank == 0:
        text = "step %d: %s: %d of %d values could not be peeled from %d cells; repaired, later cases are only counted"
        log.warning(text, ctx.step, spec.name, unpeeled, count, cells)
