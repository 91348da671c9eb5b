"""Sparse tensors as count sketches, which are added on the wire and peeled by everybody."""

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
    Op,
    Program,
    ProtocolError,
    Reduced,
    Request,
    TensorSpec,
    all_reduce_bytes,
    cast_saturating,
    derive_key,
    estimate_compressor_errors,
    fuse,
    inherit_capabilities,
    reduce_labels,
    saturate,
)
from ..core.logs import get_logger
from ..kernels import Order, cells_for, median_estimate, peel, peeling_order, sketch, table_cells
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

_SKETCH_KEY = "sketch"  # frozen: makes the random bits

log = get_logger(__name__)
REPAIRS = ("values", "median")
_ROOM = 64.0  # numbers of one sign that may meet in a cell; where peeling succeeds it is a dozen or so
_TRIES = 8  # of keys: one fails in a hundred cases for few values, where two share all their cells
_WHOLE_BITS = 30  # of the 31 of a signed word: rounding may add one


class SketchState(NamedTuple):
    """Counted since the start, the same on all ranks."""

    peeled: int = 0  # values read from sketches
    unpeeled: int = 0  # values that had to be repaired
    failures: int = 0  # exchanges in which that happened


class Sketched(NamedTuple):
    """A sum of sketches, and how to read it."""

    table: Tensor
    order: Order
    key: Key


class Units(NamedTuple):
    """How numbers travel: `up` times as large, as whole numbers in exact mode. A sum over ranks times `down` is a mean.

    Divided before they are added, so that neither the sum over ranks nor the sum in a cell overflows. Whole numbers
    are such that the sum over ranks of one coordinate fits a word; cells may wrap around, peeling does it back.
    """

    up: float
    down: float
    dtype: torch.dtype
    limit: float = math.inf

    def put(self, values: Tensor) -> Tensor:
        scaled = values.double() * self.up
        return scaled if self.dtype.is_floating_point else scaled.round().to(self.dtype)

    def ask(self, sums: Tensor, spec: TensorSpec, kind: str) -> AllReduce:
        numbers = sums.clamp(-self.limit, self.limit).to(self.dtype) if self.dtype.is_floating_point else sums
        numbers = numbers.to(spec.device)
        return AllReduce(numbers, labels=reduce_labels(spec.name, numbers, kind))

    def mean(self, totals: Tensor, spec: TensorSpec) -> Tensor:
        return saturate(cast_saturating(totals.double() * self.down, spec.work_dtype)).to(spec.device)


_ALWAYS = frozenset({Capability.WRAPS_COMPRESSOR, Capability.SUMS_NONZEROS})


@dataclass(frozen=True)
class SketchSum:
    """Agree where any rank sends something (d bits, OR), then add count sketches of it: d + 1.3·b·n bits, all-reduced.

    n is the size of the union of what ranks send. Peeling reads all n sums back, up to rounding; exact=True sends whole
    numbers and rounds nothing but what it sends. Whether peeling succeeds is known from the index, so all ranks take
    the first key with which it does. With `cells`, a share of d, the sketch has a fixed size and does not wait for the
    index; peeling fails where n is too large for it. All ranks know, and what stayed unread is sent once more
    (on_failure="values"), or guessed ("median"), counted and reported. lanes=1024 keeps neighbours together; some lanes
    fail. Where a sketch would be longer than the tensor, values travel instead.
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
                f"SketchSum: cells must be a share of the tensor between 0 and 1, got {self.cells}; 1.5 times the "
                "density of the union is usual, none asks for as many as are needed"
            )
        if self.lanes < 1:
            raise CompositionError(f"SketchSum: lanes must be at least 1, got {self.lanes}; 1024 suits large layers")
        if self.on_failure not in REPAIRS:
            raise CompositionError(
                f"SketchSum: on_failure must be one of {', '.join(REPAIRS)}, got {self.on_failure!r}"
            )

    @cached_property
    def capabilities(self) -> Capabilities:
        found, guesses = _ALWAYS, self.cells is not None and self.on_failure == "median"
        if self.lanes == 1:  # what filling up the lanes costs is not expected
            found |= inherit_capabilities(self.compressor, Capability.EXPECTS_BYTES)
        if not guesses:
            found |= inherit_capabilities(self.compressor, Capability.ESTIMATES_ERRORS)
        return found if guesses and self.index == "bitmap" else found | {Capability.VARIABLE_SIZE}

    def init(self, spec: TensorSpec, key: Key) -> SketchState:
        return SketchState()

    def expected_bytes(self, spec: TensorSpec, size: int) -> float:
        """As if ranks chose independently of each other; what a sketch of fixed size cannot hold is sent once more."""
        union, item = expected_union(self.compressor, spec, size), 4 if self.exact else spec.work_dtype.itemsize
        index = expected_union_index_bytes(union, self.index, self.false_positive_rate, spec, size)
        if self.cells is None:
            cells = cells_for(math.ceil(union))
            return index + all_reduce_bytes(item * (cells if cells < spec.numel else union), size)
        cells = self.fixed_cells(spec.numel)
        if cells >= spec.numel:
            return all_reduce_bytes(item * spec.numel, size)
        again = union if self.on_failure == "values" and cells < cells_for(math.ceil(union)) else 0.0
        return index + all_reduce_bytes(item * (cells + again), size)

    def estimate_errors(
        self, tensor: Tensor, spec: TensorSpec, options: Sequence[Any], key: Key, exact: bool
    ) -> Sequence[float | None]:
        return estimate_compressor_errors(self, tensor, spec, options, key, exact)

    def reduce(
        self, tensor: Tensor, spec: TensorSpec, state: SketchState, ctx: Context
    ) -> Program[Reduced[SketchState]]:
        flat = compress_own(self.compressor, tensor, spec, ctx)
        value = torch.zeros_like(flat)
        if not spec.numel:
            return Reduced(value.view(spec.shape), flat.view(spec.shape), state)
        units = (yield from _whole(flat, spec, ctx)) if self.exact else _shares(spec, ctx)
        sent = saturate((units.put(flat).double() / units.up).to(spec.work_dtype)) if self.exact else flat
        positions, sketched = yield from (self._in_two if self.cells is None else self._in_one)(flat, units, spec, ctx)
        if sketched is None:
            kind = "dense" if positions.numel() == spec.numel else "values"
            totals = yield from _added(flat[positions], units, spec, kind)
        else:
            totals, left = self._read(sketched, positions, spec, ctx)
            at = positions[left]
            if at.numel():
                _warn(state, spec, ctx, at.numel(), positions.numel(), sketched.table.numel())
            if self.on_failure == "values":
                repaired = yield from _added(flat[at], units, spec, "repair")
                totals[left] = repaired.to(totals.dtype)
            else:  # at a guess, every rank is taken to have sent the guess: what is wrong with it stays in its memory
                sent = sent.index_put((at,), units.mean(totals[left], spec))
            state = _counted(state, at.numel(), positions.numel())
        value[positions] = units.mean(totals, spec)
        return Reduced(value.view(spec.shape), sent.view(spec.shape), state)

    def _in_two(
        self, flat: Tensor, units: Units, spec: TensorSpec, ctx: Context
    ) -> Program[tuple[Tensor, Sketched | None]]:
        """First where, then the sketch that is long enough for it; none if that would be longer than the tensor."""
        positions = yield from all_reduce_positions(flat, self.index, self.false_positive_rate, spec, ctx)
        cells = table_cells(positions, self.lanes)
        if cells >= spec.numel or not positions.numel():
            return positions, None
        for salt in range(_TRIES if self.lanes == 1 else 1):  # of many lanes, some fail with every key
            key = derive_key(ctx.key(spec.name), _SKETCH_KEY, salt)
            order = peeling_order(positions, cells, key, self.lanes)
            if not order.left.any():
                break
        table = yield self._sketch(flat, cells, units, spec, key)
        return positions, Sketched(table, order, key)

    def _in_one(
        self, flat: Tensor, units: Units, spec: TensorSpec, ctx: Context
    ) -> Program[tuple[Tensor, Sketched | None]]:
        """A sketch of the agreed size and the index at once; everything as it is if that would be shorter."""
        cells = self.fixed_cells(spec.numel)
        if cells >= spec.numel:
            return torch.arange(spec.numel, device=flat.device), None
        index: SparseIndex = BitmapIndex(spec.numel)
        if self.index == "bloom":
            index = make_index(cells * 10 // 13, self.false_positive_rate, spec, ctx)  # the sketch can hold no more
        key = derive_key(ctx.key(spec.name), _SKETCH_KEY, 0)
        requests = index_request(index, flat, spec), self._sketch(flat, cells, units, spec, key)
        bits, table = yield from fuse([_asked(request) for request in requests])
        positions = index.decode(bits)
        return positions, Sketched(table, peeling_order(positions, cells, key, self.lanes), key)

    def fixed_cells(self, numel: int) -> int:
        """Cells of a layer if `cells` is a share: at least what one number needs, the same in every row and lane."""
        assert self.cells is not None
        wanted, step = max(math.ceil(self.cells * numel), cells_for(1)), ROWS * self.lanes
        return wanted + -wanted % step

    def _sketch(self, flat: Tensor, cells: int, units: Units, spec: TensorSpec, key: Key) -> AllReduce:
        mine = flat.nonzero().flatten()
        return units.ask(sketch(units.put(flat[mine]), mine, cells, key, self.lanes), spec, "sketch")

    def _read(self, sketched: Sketched, positions: Tensor, spec: TensorSpec, ctx: Context) -> tuple[Tensor, Tensor]:
        """Sums at the positions, and which of them are missing (or guessed)."""
        table, order, key = sketched
        values, rest = peel(table, order)
        left = order.left
        if self.exact and not left.any() and rest.any():
            raise ProtocolError(f"step {ctx.step}: cells for {spec.name} do not add up; a message was damaged")
        if self.on_failure == "median" and left.any():
            values[left] = median_estimate(rest, positions.cpu()[left], key, self.lanes)
        return values.to(spec.device), left.to(spec.device)


def _shares(spec: TensorSpec, ctx: Context) -> Units:
    size, largest = ctx.world.size, torch.finfo(spec.work_dtype).max
    return Units(1 / (_ROOM * size), _ROOM, spec.work_dtype, largest / size * (1 - 2**-20))


def _whole(flat: Tensor, spec: TensorSpec, ctx: Context) -> Program[Units]:
    """Whole numbers of a unit that suits the largest number of all ranks: a power of two, so it rounds nothing else."""
    mine = flat.abs().amax().reshape(1)
    largest = yield AllReduce(mine, Op.MAX, reduce_labels(spec.name, mine, "scale"))
    size, above = ctx.world.size, math.frexp(float(largest))[1]  # largest < 2 ** above
    bits = min(_WHOLE_BITS - above - (size - 1).bit_length(), 1000)
    return Units(math.ldexp(1.0, bits), math.ldexp(1.0, -bits) / size, torch.int32)


def _added(values: Tensor, units: Units, spec: TensorSpec, kind: str) -> Program[Tensor]:
    """Sums over ranks of these values themselves; of none, without a message."""
    numbers = units.put(values)
    if numbers.numel():
        numbers = yield units.ask(numbers, spec, kind)
    return numbers


def _asked(request: Request) -> Program[Tensor]:
    return (yield request)  # type: ignore[no-any-return]


def _counted(state: SketchState, left: int, count: int) -> SketchState:
    return SketchState(state.peeled + count - left, state.unpeeled + left, state.failures + (left > 0))


def _warn(state: SketchState, spec: TensorSpec, ctx: Context, left: int, count: int, cells: int) -> None:
    """Once a layer, by one rank: all know the same. How often it happened is in the memory."""
    if state.failures == 0 and ctx.world.rank == 0:
        text = "step %d: peeling %s left %d of %d values in %d cells; repaired, later cases are only counted"
        log.warning(text, ctx.step, spec.name, left, count, cells)
