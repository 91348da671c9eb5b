"""Scaling of values that are summed over ranks, as floats or as integers with exact sums (`sketch`)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import AllReduce, Context, Op, Program, TensorSpec, cast_saturating, reduce_labels, saturate

_CELL_HEADROOM = 64.0  # values of one sign that may share a cell; where peeling succeeds there are about a dozen
_INTEGER_BITS = 30  # of the 31 of a signed word: rounding may add one


class ValueScale(NamedTuple):
    """How values are sent: times `encode_scale`, in exact mode rounded to integers; a sum · `decode_scale` is the mean.

    Values are divided before they are added, so that neither the sum over ranks nor the sum in a cell overflows.
    Integers are such that the sum over ranks of one coordinate fits a word; cells may wrap around, peeling undoes it.
    """

    encode_scale: float
    decode_scale: float
    dtype: torch.dtype
    max_cell: float = math.inf

    def encode(self, values: Tensor) -> Tensor:
        """Values in the unit in which they are added."""
        scaled = values.double() * self.encode_scale
        return scaled if self.dtype.is_floating_point else scaled.round().to(self.dtype)

    def sum_request(self, encoded: Tensor, spec: TensorSpec, kind: str) -> AllReduce:
        """The all-reduce of encoded values, or of cells of a sketch."""
        if self.dtype.is_floating_point:
            encoded = encoded.clamp(-self.max_cell, self.max_cell).to(self.dtype)
        encoded = encoded.to(spec.device)
        return AllReduce(encoded, labels=reduce_labels(spec.name, encoded, kind))

    def decode_mean(self, sums: Tensor, spec: TensorSpec) -> Tensor:
        """Means over ranks from sums over ranks."""
        return saturate(cast_saturating(sums.double() * self.decode_scale, spec.work_dtype)).to(spec.device)


def float_scale(spec: TensorSpec, ctx: Context) -> ValueScale:
    """Floats, scaled down so far that no cell overflows."""
    size, largest = ctx.world.size, torch.finfo(spec.work_dtype).max
    return ValueScale(1 / (_CELL_HEADROOM * size), _CELL_HEADROOM, spec.work_dtype, largest / size * (1 - 2**-20))


def all_reduce_integer_scale(flat: Tensor, spec: TensorSpec, ctx: Context) -> Program[ValueScale]:
    """Integers of a unit that fits the largest value of all ranks: a power of two, so that scaling rounds nothing."""
    own = flat.abs().amax().reshape(1)
    largest = yield AllReduce(own, Op.MAX, reduce_labels(spec.name, own, "scale"))
    size, exponent = ctx.world.size, math.frexp(float(largest))[1]  # largest < 2 ** exponent
    bits = min(_INTEGER_BITS - exponent - (size - 1).bit_length(), 1000)
    return ValueScale(math.ldexp(1.0, bits), math.ldexp(1.0, -bits) / size, torch.int32)


def all_reduce_values(values: Tensor, scale: ValueScale, spec: TensorSpec, kind: str) -> Program[Tensor]:
    """Encoded sums over ranks of these values; without a message if there are none."""
    encoded = scale.encode(values)
    if encoded.numel():
        encoded = yield scale.sum_request(encoded, spec, kind)
    return encoded
