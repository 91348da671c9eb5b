"""PowerSGD for all matrices of a batch: the factors of all layers travel as one vector per round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core import (
    AllReduce,
    Context,
    Label,
    LayerBatch,
    Program,
    Reduced,
    ReducedBatch,
    TensorSpec,
    unfold,
)
from ..kernels import MatrixForm, combine_many, low_rank, low_rank_many, project_many

if TYPE_CHECKING:
    from .powersgd import PowerSGDState


def reduce_matrices(
    batch: LayerBatch, forms: Sequence[MatrixForm], subtract_mean: bool, ctx: Context
) -> Program[ReducedBatch | None]:
    """One power iteration with error feedback for all layers; None, before the first request, if a start is zero."""
    assert batch.residuals is not None
    starts = [state.right[: form[0]] for state, form in zip(batch.states, forms, strict=True)]
    projected = project_many(batch.tensors, batch.residuals, starts, forms)
    if projected is not None and projected.first_bad >= 0:
        ctx.nonfinite.append(batch.names[projected.first_bad])
        projected = project_many(batch.zeros().tensors, batch.residuals, starts, forms)
    if projected is None:
        return None
    targets = projected.targets
    lefts = yield _all_reduce(projected.factors, batch.specs, [r * rows for r, rows, _ in forms], ctx)
    bases, own = combine_many(lefts, targets, forms)
    means = yield _all_reduce(own, batch.specs, [r * columns for r, _, columns in forms], ctx)
    low_rank_many(bases, means if subtract_mean else own, forms, targets, subtract=True)
    rights = _factors(means, forms)
    states = [_replace_right(state, right) for state, right in zip(batch.states, rights, strict=True)]

    def layer(i: int) -> Reduced[Any]:
        return _layer_result(batch.specs[i], forms, i, (bases, means, means if subtract_mean else own), states[i])

    return ReducedBatch(states, targets, lambda outs: low_rank_many(bases, means, forms, outs, False), layer)


def _all_reduce(factors: Tensor, specs: Sequence[TensorSpec], sizes: Sequence[int], ctx: Context) -> AllReduce:
    """The mean of factors; a label for each layer."""
    share = factors / ctx.world.size
    labels = [Label(spec.name, "factors", 4 * n, 32.0 * n) for spec, n in zip(specs, sizes, strict=True)]
    return AllReduce(share, labels=tuple(labels))


def _factors(vector: Tensor, forms: Sequence[MatrixForm]) -> list[Tensor]:
    """The right factors (r, columns) of all layers."""
    pieces = torch.split(vector, [rank * columns for rank, _, columns in forms])
    return [piece.view(form[0], form[2]) for piece, form in zip(pieces, forms, strict=True)]


def _replace_right(state: PowerSGDState, right: Tensor) -> PowerSGDState:
    """A state made for a larger rank keeps its other rows, for when that rank is chosen again."""
    rows = right if len(right) == len(state.right) else torch.cat([right, state.right[len(right) :]])
    return state._replace(right=rows)


def _layer_result(
    spec: TensorSpec, forms: Sequence[MatrixForm], i: int, factors: tuple[Tensor, Tensor, Tensor], state: Any
) -> Reduced[Any]:
    bases, means, sent = factors
    rank, rows, columns = forms[i]
    at, to = sum(r * n for r, n, _ in forms[:i]), sum(r * n for r, _, n in forms[:i])
    left = bases[at : at + rank * rows].view(rank, rows)
    mean, own = (each[to : to + rank * columns].view(rank, columns) for each in (means, sent))
    return Reduced(
        lambda out: unfold(low_rank(out, left, mean), spec), lambda: unfold(low_rank(None, left, own), spec), state
    )
