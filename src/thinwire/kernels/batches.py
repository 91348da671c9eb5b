"""Kernels for all layers of a batch at once, as loops over the kernels of one layer: the reference of C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import DecodeError, Payload, all_finite, copy_all, saturate
from .codes import largest_magnitudes, positions_reaching
from .positions import decode_positions, encode_positions, sparse_mean


class TakenBatch(NamedTuple):
    """The largest coordinates of each layer.

    payload: coded positions and values of each layer in turn. codings: how positions are coded. rests: what is left of
    each layer, or the next estimate of each; None if there were neither residuals nor estimates. first_bad: the first
    layer with a tensor that is not finite, or -1; then all else is void.
    """

    payload: Payload
    codings: list[int]
    rests: list[Tensor] | None
    first_bad: int


def take_largest_many(
    tensors: Sequence[Tensor], residuals: Sequence[Tensor] | None, counts: Sequence[int]
) -> TakenBatch:
    """`take_largest` of each layer, or its largest coordinates where there are no residuals."""
    targets, first_bad = add_many(tensors, residuals)
    if first_bad >= 0:
        return TakenBatch(Payload(()), [], None, first_bad)
    flats = [target.flatten() for target in targets]
    positions = [largest_magnitudes(flat, count) for flat, count in zip(flats, counts, strict=True)]
    taken = take_at_many(flats, torch.cat(positions), counts, residuals is not None)
    return taken._replace(rests=None if residuals is None else targets)


def add_many(tensors: Sequence[Tensor], others: Sequence[Tensor] | None) -> tuple[list[Tensor], int]:
    """The saturated sums of each layer, and the first layer with a tensor that is not finite, or -1.

    Without `others`, the tensors themselves.
    """
    first_bad = next((i for i, tensor in enumerate(tensors) if not all_finite(tensor)), -1)
    if others is None:
        return list(tensors), first_bad
    return [saturate(tensor + other).contiguous() for tensor, other in zip(tensors, others, strict=True)], first_bad


def take_at_many(flats: Sequence[Tensor], positions: Tensor, counts: Sequence[int], remove: bool) -> TakenBatch:
    """The values of each layer at ascending positions, those of all layers one after another; `remove` leaves zeros."""
    parts, codings = list[Tensor](), list[int]()
    for flat, own in zip(flats, torch.split(positions, list(counts)), strict=True):
        coded = encode_positions(own, flat.numel())
        parts += [coded.data, flat[own]]
        codings.append(coded.coding)
        if remove:
            flat[own] = 0
    return TakenBatch(Payload(parts), codings, None, -1)


def positions_reaching_many(flats: Sequence[Tensor], levels: Sequence[float]) -> tuple[Tensor, list[int]]:
    """`positions_reaching` of each layer with a level of its own, one after another, and how many there are of each."""
    found = [positions_reaching(flat, level) for flat, level in zip(flats, levels, strict=True)]
    return torch.cat(found), [each.numel() for each in found]


def kth_magnitudes(flats: Sequence[Tensor], counts: Sequence[int]) -> list[float]:
    """The magnitude of each layer that so many of its magnitudes reach, or more if some are equal."""
    largest = [flat[largest_magnitudes(flat, count)] for flat, count in zip(flats, counts, strict=True)]
    return [float(each.abs().min()) for each in largest]


def sparse_mean_many(payloads: Sequence[Payload], bounds: Sequence[tuple[int, int]], outs: Sequence[Tensor]) -> None:
    """Write the mean of all ranks' sparse vectors of each layer to `outs`.

    Args:
        payloads: as of `take_largest_many`.
        bounds: the smallest and the largest number of values in each layer.
        outs: float32, one for each layer.

    Raises:
        DecodeError: a payload is damaged.
    """
    for i, ((least, most), out) in enumerate(zip(bounds, outs, strict=True)):
        pairs = [payload.parts[2 * i : 2 * i + 2] for payload in payloads]
        for coded, kept in pairs:
            count = kept.numel()
            if not least <= count <= most or not all_finite(kept):
                decode_positions(coded, min(max(count, least), most), out.numel())  # the more useful error
                raise DecodeError(f"sparse values: {least} to {most} finite numbers expected, got {count}")
        mean = sparse_mean([kept for _, kept in pairs], [coded for coded, _ in pairs], out.numel())
        out.copy_(mean.view(out.shape))


def take_changes_many(tensors: Sequence[Tensor], estimates: Sequence[Tensor], counts: Sequence[int]) -> TakenBatch:
    """The largest coordinates of each tensor minus its estimate, saturated; an estimate plus these is the next one."""
    differences, first_bad = subtract_many(tensors, estimates)
    if first_bad >= 0:
        return TakenBatch(Payload(()), [], None, first_bad)
    taken = take_largest_many(differences, None, counts)
    bounds = [(count, count) for count in counts]
    return taken._replace(rests=add_sparse_many(estimates, [taken.payload], bounds))


def add_sparse_many(
    bases: Sequence[Tensor],
    payloads: Sequence[Payload],
    bounds: Sequence[tuple[int, int]],
    outs: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """New tensors: each base plus the mean of all ranks' sparse vectors of that layer, saturated; also put in `outs`.

    Raises:
        DecodeError: a payload is damaged.
    """
    means = [torch.empty_like(base) for base in bases]
    sparse_mean_many(payloads, bounds, means)
    sums = [saturate(base + mean) for base, mean in zip(bases, means, strict=True)]
    if outs is not None:
        copy_all(sums, outs)
    return sums


def subtract_many(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> tuple[list[Tensor], int]:
    """The saturated differences of each layer, and the first layer with a tensor that is not finite, or -1."""
    first_bad = next((i for i, tensor in enumerate(tensors) if not all_finite(tensor)), -1)
    return [saturate(tensor - other) for tensor, other in zip(tensors, others, strict=True)], first_bad
