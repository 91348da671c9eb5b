"""Layers as matrices or tensors, for low-rank compressors. The dimensions follow from the shape and are not sent."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import pad

from .tensors import TensorSpec

Dims = tuple[int, ...]


def matrix_dims(shape: Sequence[int], given: Dims | None = None) -> Dims:
    """(rows, columns): `given` if it has as many elements; else the first dimension by all others, or a near square."""
    if given is not None and math.prod(given) == math.prod(shape):
        return given
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else near_square(math.prod(shape))


def tensor_dims(shape: Sequence[int], given: Dims | None = None) -> Dims:
    """The layer's own dimensions (four for a convolution) if it has more than two; else those of `matrix_dims`."""
    own = len(shape) > 2 and (given is None or math.prod(given) != math.prod(shape))
    return tuple(shape) if own else matrix_dims(shape, given)


def near_square(numel: int, exact: bool = False) -> tuple[int, int]:
    """(rows, columns) for a vector: divisors with a ratio of at most 1 : 4, else a square with a few zeros as padding.

    exact: divisors with any ratio, without padding.
    """
    if numel == 0:
        return (0, 0)
    root = math.isqrt(numel)
    min_rows = 1 if exact else max(1, root // 2)  # below it, columns are more than four times the rows
    rows = next((r for r in range(root, min_rows - 1, -1) if numel % r == 0 and (exact or numel // r <= 4 * r)), root)
    return (rows, -(-numel // rows))


def fold(tensor: Tensor, dims: Dims) -> Tensor:
    """The tensor in these dimensions, padded with zeros at the end. Contiguous, since strides change the rounding."""
    padding = math.prod(dims) - tensor.numel()
    return pad(tensor.reshape(-1), (0, padding)).view(dims) if padding else tensor.contiguous().view(dims)


def unfold(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """Back to the layer's shape, without the padding."""
    is_unpadded = tensor.numel() == spec.numel
    return tensor.reshape(spec.shape) if is_unpadded else tensor.reshape(-1)[: spec.numel].view(spec.shape)
