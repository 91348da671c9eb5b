"""A low-rank average, found by one power iteration a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core import (
    RANK,
    Capabilities,
    Capability,
    CompositionError,
    Context,
    Dims,
    Key,
    Program,
    Reduced,
    TensorSpec,
    all_reduce_bytes,
    cast_saturating,
    derive_key,
    folded,
    matrix_dims,
    reduce_and_subtract,
    saturate,
    unfolded,
)
from ..kernels import (
    add_and_project,
    add_saturated,
    combine_rows,
    low_rank,
    noise_matrix,
    orthonormal,
    subtract_low_rank,
)
from .dense import mean_of

AGAINST = ("own", "mean")
_OVERSAMPLING, _TURNS = 8, 2  # of a randomised factorisation: enough for errors within a percent or so


class PowerState(NamedTuple):
    """Where the next iteration starts, as rows: r × columns, and for the half form r × rows, too. Empty if dense."""

    right: Tensor
    left: Tensor


@dataclass(frozen=True)
class PowerSGD:
    """Send the average's projection on r directions that follow it from step to step: r·(rows + columns)·b bits.

    P = orthonormal(M Q), Q = Mᵀ P, both averaged on the wire; the average is then P Qᵀ, and Q starts the next step. A
    layer is a matrix of its outputs against all the rest; vectors, and layers where this would save less than
    `min_saving`, travel dense. `against` says what error feedback subtracts: a rank's "own" contribution P (Mᵀ P)ᵀ, or
    the "mean" P Qᵀ, as torch's hook does. `halves` sends P and Q in turns, half the bytes and one message a step.
    PowerSGD, arXiv 1905.13727.
    """

    tunable = RANK
    capabilities: ClassVar[Capabilities] = frozenset(
        {Capability.FUSES_RESIDUAL, Capability.ESTIMATES_ERRORS, Capability.EXPECTS_BYTES, Capability.UNBOUNDED_BIAS}
    )

    rank: int = 4
    dims: Dims | None = None
    min_saving: float = 2.0
    against: str = "own"
    halves: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise CompositionError(f"PowerSGD: rank must be at least 1, got {self.rank}; 4 is usual")
        if self.dims is not None and (len(self.dims) != 2 or min(self.dims) < 1):
            raise CompositionError(
                f"PowerSGD: dims must be (rows, columns), got {self.dims}; leave it out to follow shapes"
            )
        if not self.min_saving > 0:
            raise CompositionError(f"PowerSGD: min_saving must be positive, got {self.min_saving}; 2 is usual")
        if self.against not in AGAINST:
            raise CompositionError(f"PowerSGD: against must be one of {', '.join(AGAINST)}, got {self.against!r}")

    def form(self, spec: TensorSpec) -> tuple[int, int, int] | None:
        """(rank, rows, columns) that a layer travels in, or None if dense is as cheap."""
        if len(spec.shape) < 2 and (self.dims is None or spec.numel != self.dims[0] * self.dims[1]):
            return None
        rows, columns = matrix_dims(spec.shape, self.dims)
        rank = min(self.rank, rows, columns)
        return None if rank * (rows + columns) * self.min_saving >= spec.numel else (rank, rows, columns)

    def init(self, spec: TensorSpec, key: Key) -> PowerState:
        form = self.form(spec)
        if form is None:
            nothing = torch.zeros(0, dtype=spec.work_dtype, device=spec.device)
            return PowerState(nothing, nothing)
        rank, rows, columns = form
        right, left = (noise_matrix(rank, n, derive_key(key, n), spec.device) for n in (columns, rows))
        return PowerState(right.to(spec.work_dtype), left.to(spec.work_dtype) if self.halves else right[:0, :0].float())

    def expected_bytes(self, spec: TensorSpec, size: int) -> float:
        form = self.form(spec)
        numbers = spec.numel if form is None else form[0] * (form[1] + form[2]) / (2 if self.halves else 1)
        return all_reduce_bytes(numbers * spec.dtype.itemsize, size)

    def estimate_errors(
        self, tensor: Tensor, spec: TensorSpec, options: Sequence[Any], key: Key, exact: bool
    ) -> Sequence[float | None]:
        """What is beyond a rank, by singular values: one factorisation for all ranks, a randomised one if not exact."""
        forms = [
            option.form(spec) if isinstance(option, PowerSGD) and option.dims == self.dims else () for option in options
        ]
        ranks = [form[0] for form in forms if form]
        if not ranks:
            return [None if form == () else 0.0 for form in forms]
        matrix = folded(tensor, next(form[1:] for form in forms if form))
        matrix = matrix.double() if exact else matrix.to(spec.work_dtype)
        found = torch.linalg.svdvals(matrix) if exact else leading_singular_values(matrix, max(ranks), key)
        size = torch.linalg.vector_norm(matrix, dtype=torch.float64)
        beyond = (size.square() - found.double().square().cumsum(0)).clamp(min=0).sqrt()
        return [None if form == () else float(beyond[form[0] - 1]) if form else 0.0 for form in forms]

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: PowerState, ctx: Context) -> Program[Reduced[PowerState]]:
        form = self.form(spec)
        if form is None:
            return Reduced((yield from mean_of(tensor, spec, ctx, "dense")), tensor, state)
        matrix = folded(tensor, form[1:]).to(spec.work_dtype)
        out, _, _ = yield from self._average(matrix, None, spec, state, ctx)
        return out

    def reduce_with_residual(
        self, tensor: Tensor, residual: Tensor, spec: TensorSpec, state: PowerState, ctx: Context
    ) -> Program[tuple[Reduced[PowerState], Tensor]]:
        """One pass adds the residual and projects, one projects back, one takes away what was sent."""
        form = self.form(spec)
        if form is None:
            return (yield from reduce_and_subtract(self, tensor, residual, spec, state, ctx))
        matrix, before = folded(tensor, form[1:]), folded(residual, form[1:])
        out, target, (left, right) = yield from self._average(matrix, before, spec, state, ctx)
        subtract_low_rank(target, left, right)
        return out, unfolded(target, spec)

    def _average(
        self, matrix: Tensor, before: Tensor | None, spec: TensorSpec, state: PowerState, ctx: Context
    ) -> Program[tuple[Reduced[PowerState], Tensor, tuple[Tensor, Tensor]]]:
        """The reduction of a matrix (and a residual), their sum, the factors (r × rows, r × columns) of what was sent.

        The sum is memory of our own where there is a residual.
        """
        turn = self._half if self.halves else self._whole
        target, left, mine_left, right, mine_right, state = yield from turn(matrix, before, spec, state, ctx)

        def value(out: Tensor | None) -> Tensor:
            return unfolded(low_rank(out, left, right), spec)

        if self.against == "mean":
            return Reduced(value, lambda: value(None), state), target, (left, right)

        def sent() -> Tensor:
            return unfolded(low_rank(None, mine_left, mine_right), spec)

        return Reduced(value, sent, state), target, (mine_left, mine_right)

    def _whole(
        self, matrix: Tensor, before: Tensor | None, spec: TensorSpec, state: PowerState, ctx: Context
    ) -> Program[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, PowerState]]:
        start = refreshed(state.right[: self._rank(spec)], ctx.key(f"{spec.name}/basis"))
        target, projected = _projected(matrix, before, start)
        _, seen = yield from _averaged(projected, spec, ctx)  # (r, rows)
        basis = orthonormal(seen).to(spec.work_dtype)
        mine, mean = yield from _averaged(combine_rows(basis, target), spec, ctx)  # (r, columns)
        return target, basis, basis, mean, mine, PowerState(_among(mean, state.right), state.left)

    def _half(
        self, matrix: Tensor, before: Tensor | None, spec: TensorSpec, state: PowerState, ctx: Context
    ) -> Program[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, PowerState]]:
        """Even steps project on the columns' basis and learn the rows', odd steps the other way round."""
        key = ctx.key(f"{spec.name}/basis")
        if ctx.step % 2:
            basis = orthonormal(refreshed(state.left[: self._rank(spec)], key)).to(spec.work_dtype)
            target = matrix if before is None else add_saturated(matrix, before)
            mine, mean = yield from _averaged(combine_rows(basis, target), spec, ctx)
            return target, basis, basis, mean, mine, PowerState(_among(mean, state.right), state.left)
        basis = orthonormal(refreshed(state.right[: self._rank(spec)], key)).to(spec.work_dtype)
        target, projected = _projected(matrix, before, basis)
        mine, mean = yield from _averaged(projected, spec, ctx)
        return target, mean, mine, basis, basis, PowerState(state.right, _among(mean, state.left))

    def _rank(self, spec: TensorSpec) -> int:
        form = self.form(spec)
        return 0 if form is None else form[0]


def _projected(matrix: Tensor, before: Tensor | None, basis: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix with what was left before, and its products with a basis of its columns (r × rows)."""
    return (matrix, basis @ matrix.T) if before is None else add_and_project(matrix, before, basis)


def _averaged(factor: Tensor, spec: TensorSpec, ctx: Context) -> Program[tuple[Tensor, Tensor]]:
    """A rank's factor as it is sent, in the layer's type, and the mean over ranks; both in the type of work."""
    mine = cast_saturating(saturate(factor), spec.dtype)
    mean = yield from mean_of(mine, spec, ctx, "factors")
    return cast_saturating(mine, spec.work_dtype), cast_saturating(mean, spec.work_dtype)


def _among(factor: Tensor, kept: Tensor) -> Tensor:
    """The new rows; a memory made for a larger rank keeps its others, for when that is chosen again."""
    return factor if len(factor) == len(kept) else torch.cat([factor, kept[len(factor) :]])


def leading_singular_values(matrix: Tensor, count: int, key: Key) -> Tensor:
    """The largest ones, from below: of the matrix seen through a random subspace that was turned towards it twice."""
    rows, columns = matrix.shape
    width = min(rows, columns, count + _OVERSAMPLING)
    basis = noise_matrix(width, columns, key, matrix.device).to(matrix.dtype).T
    for _ in range(_TURNS):
        basis = torch.linalg.qr(matrix.T @ torch.linalg.qr(matrix @ basis).Q).Q
    values: Tensor = torch.linalg.svdvals(matrix @ basis)
    return values[:count]


def refreshed(basis: Tensor, key: Key) -> Tensor:
    """Rows scaled to a largest option of one; a row of zeros, which would find nothing ever again, is drawn anew.

    All of it elementwise, and the noise a hash, so that all ranks have the same bits.
    """
    peaks = basis.abs().amax(dim=1, keepdim=True)
    if bool((peaks > 0).all()):
        return basis / peaks
    fresh = noise_matrix(len(basis), basis.shape[1], key, basis.device).to(basis.dtype)
    return torch.where(peaks > 0, basis / peaks, fresh)
