"""The C kernels of kernels/code_batches.py; see `calls`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core import Key, PackedPayload, Payload
from ...core.payloads import Integers
from ..code_batches import CodedBatch, CodeForm
from ..codes import SMALLEST_NORM
from ..memory import empty
from .calls_batches import _LINE, _addresses, _align, _all_suit, _cut_like, _integers, _pointer

_MAX_BITS = 8


class _CodeLayout(NamedTuple):
    """Arguments of C for layers of these sizes, and where the results lie."""

    form: Integers
    numels: Integers
    starts: Integers  # bytes; (layers, parts)
    lengths: Integers  # bytes, of all parts in turn
    num_bytes: int
    rest_starts: Integers  # elements
    rest_sizes: list[int]  # with the gaps that alignment leaves
    dtypes: tuple[torch.dtype, ...]


@lru_cache(maxsize=256)  # the same for a bucket at every step
def _code_layout(form: CodeForm, numels: tuple[int, ...]) -> _CodeLayout:
    lengths = [num_bytes for numel in numels for num_bytes in form.part_bytes(numel)]
    starts = np.cumsum([0, *[_align(length, 8) for length in lengths]])
    sizes = [_align(numel, _LINE) for numel in numels]
    return _CodeLayout(
        _integers(form),
        _integers(numels),
        starts[:-1].astype(np.int64).reshape(len(numels), -1),
        _integers(lengths),
        int(starts[-1]),
        np.cumsum([0, *sizes[:-1]]).astype(np.int64),
        sizes,
        form.dtypes * len(numels),
    )


def encode_codes_many(
    library: ctypes.CDLL,
    form: CodeForm,
    tensors: Sequence[Tensor],
    residuals: Sequence[Tensor] | None,
    keys: Sequence[Key],
) -> CodedBatch | None:
    numels = tuple([tensor.numel() for tensor in tensors])
    if not (form.bits <= _MAX_BITS and all(numels) and _all_suit(tensors) and _fit(residuals, numels)):
        return None
    layout = _code_layout(form, numels)
    buffer = empty(layout.num_bytes, torch.uint8)
    rest = None if residuals is None else empty(sum(layout.rest_sizes))
    rest_at = None if rest is None else 4 * layout.rest_starts + rest.data_ptr()
    counters = _counters(keys) if form.is_random else (None, None)
    given = _addresses(tensors), None if residuals is None else _addresses(residuals)
    parts = _planes(layout.starts + buffer.data_ptr())
    arrays = *given, layout.numels, *counters, rest_at, *parts
    first_bad = library.tw_encode_codes_many(_pointer(layout.form), len(numels), SMALLEST_NORM, *map(_pointer, arrays))
    if first_bad < -1:
        return None
    payload = PackedPayload(buffer, layout.starts.ravel(), layout.lengths, layout.dtypes)
    return CodedBatch(payload, None if rest is None else _cut_like(rest, layout.rest_sizes, tensors), first_bad)


def mean_codes_many(library: ctypes.CDLL, form: CodeForm, payloads: Sequence[Payload], outs: Sequence[Tensor]) -> bool:
    numels, ranks = tuple([out.numel() for out in outs]), len(payloads)
    if not (form.bits <= _MAX_BITS and ranks and all(numels) and _all_suit(outs)):
        return False
    layout = _code_layout(form, numels)
    if not all(_has_form(payload, layout) for payload in payloads):
        return False
    shape = layout.starts.shape
    addresses = np.stack(
        [payload.table().addresses.reshape(shape) for payload in payloads], 1
    )  # (layers, ranks, parts)
    arrays, targets = (*_planes(addresses), layout.numels), _addresses(outs)  # arrays must outlive the call
    wrong = library.tw_mean_codes_many(
        _pointer(layout.form), len(numels), ranks, *map(_pointer, arrays), 1 / ranks, _pointer(targets)
    )
    return bool(wrong == -1)


def _fit(residuals: Sequence[Tensor] | None, numels: tuple[int, ...]) -> bool:
    """Whether there is no residual, or C can read one for each layer."""
    return residuals is None or (_all_suit(residuals) and tuple([each.numel() for each in residuals]) == numels)


def _has_form(payload: Payload, layout: _CodeLayout) -> bool:
    """Whether a payload has vectors of the right types and lengths."""
    if not payload.is_contiguous or payload.dtypes != layout.dtypes:
        return False
    are_vectors = isinstance(payload, PackedPayload) or all(part.dim() == 1 for part in payload.parts)
    return are_vectors and np.array_equal(payload.table().lengths, layout.lengths)


def _counters(keys: Sequence[Key]) -> tuple[Any, Any]:
    """Starts and strides of the noise; see `calls._counter`."""
    words = np.array(list(keys), dtype=np.uint64)
    return words.astype(np.uint32), (words >> np.uint64(32)).astype(np.uint32) | np.uint32(1)


def _planes(addresses: Integers) -> tuple[Integers, Integers | None]:
    """The addresses of all first and of all second parts, which the last axis has; None if there is no second."""
    first, *second = [np.ascontiguousarray(addresses[..., i]) for i in range(addresses.shape[-1])]
    return first, second[0] if second else None
