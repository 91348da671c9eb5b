"""PowerSGD (Vogels et al., 2019): all-reduce the factors P = M Q and Q = Mᵀ P of one power iteration per step."""

from __future__ import annotations

import math
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
    LayerBatch,
    Program,
    Reduced,
    ReducedBatch,
    TensorSpec,
    all_reduce_bytes,
    cast_saturating,
    derive_key,
    fold,
    fuse,
    join_reduced,
    matrix_dims,
    reduce_and_subtract,
    reduce_singly,
    reduce_tested,
    saturate,
    unfold,
)
from ..kernels import (
    MatrixForm,
    add_and_project,
    add_saturated,
    combine_rows,
    low_rank,
    noise_matrix,
    orthonormalize,
    subtract_low_rank,
)
from .dense import all_reduce_mean
from .powersgd_batch import reduce_matrices

SUBTRACT = ("own", "mean")
_OVERSAMPLING, _POWER_ITERATIONS = 8, 2  # of a randomized SVD: enough for errors within about one percent
_BASIS_KEY = "basis"  # frozen: makes the random bits


class PowerSGDState(NamedTuple):
    """Start of the next power iteration, one factor row per direction. Empty if the layer is sent dense."""

    right: Tensor  # (r, columns): Qᵀ
    left: Tensor  # (r, rows): Pᵀ, only if factors alternate


@dataclass(frozen=True)
class PowerSGD:
    """Rank-r average P Qᵀ by one power iteration per step, started at the last step's Q: r·(rows + columns)·b bits.

    P = orthonormal(mean of M Q), Q = mean of Mᵀ P. A layer is a matrix of its first dimension by all others; vectors
    are sent dense. arXiv 1905.13727.

    Args:
        rank: r, the rank of the average.
        dims: (rows, columns) of the matrix, for layers with as many elements; by default the layer's shape decides.
        min_saving: layers where the factors would save less than this factor are sent dense.
        subtract: what error feedback subtracts: a rank's "own" contribution P (Mᵀ P)ᵀ, or the "mean" P Qᵀ, as torch's
            PowerSGD hook does.
        alternate: send P and Q in turns (ACP-SGD, Zhang et al., 2023): half the bytes and one message per step.
    """

    tunable = RANK
    capabilities: ClassVar[Capabilities] = frozenset(
        {
            Capability.FUSES_RESIDUAL,
            Capability.BATCHES_LAYERS,
            Capability.ESTIMATES_ERRORS,
            Capability.EXPECTS_BYTES,
            Capability.UNBOUNDED_BIAS,
        }
    )

    rank: int = 4
    dims: Dims | None = None
    min_saving: float = 2.0
    subtract: str = "own"
    alternate: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise CompositionError(f"PowerSGD: rank must be at least 1, got {self.rank}; 4 is usual")
        if self.dims is not None and (len(self.dims) != 2 or min(self.dims) < 1):
            raise CompositionError(
                f"PowerSGD: dims must be (rows, columns), got {self.dims}; without dims, a layer's shape decides"
            )
        if not self.min_saving > 0:
            raise CompositionError(f"PowerSGD: min_saving must be positive, got {self.min_saving}; 2 is usual")
        if self.subtract not in SUBTRACT:
            raise CompositionError(
                f"PowerSGD: subtract must be one of {', '.join(SUBTRACT)}, got {self.subtract!r}; own is usual"
            )

    def form(self, spec: TensorSpec) -> tuple[int, int, int] | None:
        """(rank, rows, columns) of a layer's factors, or None if it is sent dense."""
        if len(spec.shape) < 2 and (self.dims is None or spec.numel != self.dims[0] * self.dims[1]):
            return None
        rows, columns = matrix_dims(spec.shape, self.dims)
        rank = min(self.rank, rows, columns)
        return None if rank * (rows + columns) * self.min_saving >= spec.numel else (rank, rows, columns)

    def init(self, spec: TensorSpec, key: Key) -> PowerSGDState:
        form = self.form(spec)
        if form is None:
            empty = torch.zeros(0, dtype=spec.work_dtype, device=spec.device)
            return PowerSGDState(empty, empty)
        rank, rows, columns = form
        right, left = (noise_matrix(rank, n, derive_key(key, n), spec.device) for n in (columns, rows))
        return PowerSGDState(
            right.to(spec.work_dtype), left.to(spec.work_dtype) if self.alternate else right[:0, :0].float()
        )

    def expected_bytes(self, spec: TensorSpec, size: int) -> float:
        form = self.form(spec)
        numbers = spec.numel if form is None else form[0] * (form[1] + form[2]) / (2 if self.alternate else 1)
        return all_reduce_bytes(numbers * spec.dtype.itemsize, size)

    def estimate_errors(
        self, tensor: Tensor, spec: TensorSpec, options: Sequence[Any], key: Key, exact: bool
    ) -> Sequence[float | None]:
        """The norm beyond the first r singular values: one SVD for all ranks, a randomized one if not exact."""
        forms = [
            option.form(spec) if isinstance(option, PowerSGD) and option.dims == self.dims else () for option in options
        ]
        ranks = [form[0] for form in forms if form]
        if not ranks:
            return [None if form == () else 0.0 for form in forms]
        matrix = fold(tensor, next(form[1:] for form in forms if form))
        matrix = matrix.double() if exact else matrix.to(spec.work_dtype)
        exponent = math.frexp(float(matrix.abs().amax()))[1]
        scale = 2.0 ** max(-126, min(126, -exponent))  # a power of two, so that no product overflows
        matrix = matrix * scale
        values = torch.linalg.svdvals(matrix) if exact else leading_singular_values(matrix, max(ranks), key)
        norm = torch.linalg.vector_norm(matrix, dtype=torch.float64)
        errors = (norm.square() - values.double().square().cumsum(0)).clamp(min=0).sqrt() / scale
        return [None if form == () else float(errors[form[0] - 1]) if form else 0.0 for form in forms]

    def reduce(
        self, tensor: Tensor, spec: TensorSpec, state: PowerSGDState, ctx: Context
    ) -> Program[Reduced[PowerSGDState]]:
        form = self.form(spec)
        if form is None:
            return Reduced((yield from all_reduce_mean(tensor, spec, ctx, "dense")), tensor, state)
        matrix = fold(tensor, form[1:]).to(spec.work_dtype)
        out, _, _ = yield from self._average(matrix, None, spec, state, ctx)
        return out

    def reduce_many(self, batch: LayerBatch, ctx: Context) -> Program[ReducedBatch]:
        """All matrices together, if there are residuals; other layers one by one."""
        forms = {i: form for i, spec in enumerate(batch.specs) if (form := self.form(spec)) is not None}
        matrices = list(forms) if batch.residuals is not None and not self.alternate else []
        groups = [matrices] * bool(matrices) + [[i] for i in range(len(batch.specs)) if i not in matrices]
        programs = [
            self._reduce_matrices(batch.select(group), [forms[i] for i in group], ctx)
            if group is matrices
            else reduce_tested(self, batch.select(group), ctx)
            for group in groups
        ]
        return join_reduced(list(zip(groups, (yield from fuse(programs)), strict=True)))

    def _reduce_matrices(self, batch: LayerBatch, forms: Sequence[MatrixForm], ctx: Context) -> Program[ReducedBatch]:
        out = yield from reduce_matrices(batch, forms, self.subtract == "mean", ctx)
        # a start of zeros is replaced by random numbers in the plain form
        return out if out is not None else (yield from reduce_singly(self, batch, ctx))

    def reduce_with_residual(
        self, tensor: Tensor, residual: Tensor, spec: TensorSpec, state: PowerSGDState, ctx: Context
    ) -> Program[tuple[Reduced[PowerSGDState], Tensor]]:
        """Three passes: add the residual and project, project back, subtract what was sent."""
        form = self.form(spec)
        if form is None:
            return (yield from reduce_and_subtract(self, tensor, residual, spec, state, ctx))
        matrix, old = fold(tensor, form[1:]), fold(residual, form[1:])
        out, target, (left, right) = yield from self._average(matrix, old, spec, state, ctx)
        subtract_low_rank(target, left, right)
        return out, unfold(target, spec)

    def _average(
        self, matrix: Tensor, residual: Tensor | None, spec: TensorSpec, state: PowerSGDState, ctx: Context
    ) -> Program[tuple[Reduced[PowerSGDState], Tensor, tuple[Tensor, Tensor]]]:
        """The reduction of matrix + residual, that sum, and the factors (r, rows), (r, columns) of what was sent.

        With a residual, the sum is a new tensor, which the caller may overwrite.
        """
        iterate = self._alternating_iteration if self.alternate else self._full_iteration
        target, left, own_left, right, own_right, state = yield from iterate(matrix, residual, spec, state, ctx)

        def value(out: Tensor | None) -> Tensor:
            return unfold(low_rank(out, left, right), spec)

        if self.subtract == "mean":
            return Reduced(value, lambda: value(None), state), target, (left, right)

        def sent() -> Tensor:
            return unfold(low_rank(None, own_left, own_right), spec)

        return Reduced(value, sent, state), target, (own_left, own_right)

    def _full_iteration(
        self, matrix: Tensor, residual: Tensor | None, spec: TensorSpec, state: PowerSGDState, ctx: Context
    ) -> Program[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, PowerSGDState]]:
        start = normalize_basis(state.right[: self._rank(spec)], ctx.key(f"{spec.name}/{_BASIS_KEY}"))
        target, projected = _project(matrix, residual, start)
        _, left = yield from _average_factor(projected, spec, ctx)  # (r, rows)
        basis = orthonormalize(left).to(spec.work_dtype)
        own, mean = yield from _average_factor(combine_rows(basis, target), spec, ctx)  # (r, columns)
        return target, basis, basis, mean, own, PowerSGDState(_replace_rows(state.right, mean), state.left)

    def _alternating_iteration(
        self, matrix: Tensor, residual: Tensor | None, spec: TensorSpec, state: PowerSGDState, ctx: Context
    ) -> Program[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, PowerSGDState]]:
        """Even steps project on the column basis and send P, odd steps project on the row basis and send Q."""
        key = ctx.key(f"{spec.name}/{_BASIS_KEY}")
        if ctx.step % 2:
            basis = orthonormalize(normalize_basis(state.left[: self._rank(spec)], key)).to(spec.work_dtype)
            target = matrix if residual is None else add_saturated(matrix, residual)
            own, mean = yield from _average_factor(combine_rows(basis, target), spec, ctx)
            return target, basis, basis, mean, own, PowerSGDState(_replace_rows(state.right, mean), state.left)
        basis = orthonormalize(normalize_basis(state.right[: self._rank(spec)], key)).to(spec.work_dtype)
        target, projected = _project(matrix, residual, basis)
        own, mean = yield from _average_factor(projected, spec, ctx)
        return target, mean, own, basis, basis, PowerSGDState(state.right, _replace_rows(state.left, mean))

    def _rank(self, spec: TensorSpec) -> int:
        form = self.form(spec)
        return 0 if form is None else form[0]


def _project(matrix: Tensor, residual: Tensor | None, basis: Tensor) -> tuple[Tensor, Tensor]:
    """matrix + residual, and its products with the basis of its columns: (r, rows)."""
    return (matrix, basis @ matrix.T) if residual is None else add_and_project(matrix, residual, basis)


def _average_factor(factor: Tensor, spec: TensorSpec, ctx: Context) -> Program[tuple[Tensor, Tensor]]:
    """This rank's factor as it is sent (in the layer's dtype), and the mean over ranks; both in the work dtype."""
    own = cast_saturating(saturate(factor), spec.dtype)
    mean = yield from all_reduce_mean(own, spec, ctx, "factors")
    return cast_saturating(own, spec.work_dtype), cast_saturating(mean, spec.work_dtype)


def _replace_rows(stored: Tensor, factor: Tensor) -> Tensor:
    """The new rows; a state made for a larger rank keeps its other rows, for when that rank is chosen again."""
    return factor if len(factor) == len(stored) else torch.cat([factor, stored[len(factor) :]])


def leading_singular_values(matrix: Tensor, count: int, key: Key) -> Tensor:
    """Lower bounds of the largest singular values by randomized SVD with power iterations (Halko et al., 2011)."""
    rows, columns = matrix.shape
    width = min(rows, columns, count + _OVERSAMPLING)
    basis = noise_matrix(width, columns, key, matrix.device).to(matrix.dtype).T
    for _ in range(_POWER_ITERATIONS):
        basis = torch.linalg.qr(matrix.T @ torch.linalg.qr(matrix @ basis).Q).Q
    values: Tensor = torch.linalg.svdvals(matrix @ basis)
    return values[:count]


def normalize_basis(basis: Tensor, key: Key) -> Tensor:
    """Rows scaled to a largest entry of one; a row of zeros, which would stay zero, is replaced by random numbers.

    All operations are elementwise and the noise is a hash, so that all ranks have the same bits.
    """
    peaks = basis.abs().amax(dim=1, keepdim=True)
    if bool((peaks > 0).all()):
        return basis / peaks
    fresh = noise_matrix(len(basis), basis.shape[1], key, basis.device).to(basis.dtype)
    return torch.where(peaks > 0, basis / peaks, fresh)
