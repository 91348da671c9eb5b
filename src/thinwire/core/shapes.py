"""How a layer is seen as a matrix or a tensor, by operators that factorise it. Follows from its shape, never sent."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import pad

from .tensors import TensorSpec

Dims = tuple[int, ...]


def matrix_dims(shape: Sequence[int], given: Dims | None = None) -> Dims:
    """(rows, columns): a layer's outputs against all the rest, a vector near to a square, or as given where it fits."""
    if given is not None and math.prod(given) == math.prod(shape):
        return given
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else near_square(math.prod(shape))


def tensor_dims(shape: Sequence[int], given: Dims | None = None) -> Dims:
    """The layer's own dimensions (four for a convolution) where none are given that fit, else as `matrix_dims` says."""
    own = len(shape) > 2 and (given is None or math.prod(given) != math.prod(shape))
    return tuple(shape) if own else matrix_dims(shape, given)


def near_square(numel: int, exact: bool = False) -> tuple[int, int]:
    """(rows, columns) for a vector: its divisors if they are at most 1 : 4, else a square with a few zeros to spare.

    exact: its divisors, however long the rows.
    """
    if numel == 0:
        return (0, 0)
    root = math.isqrt(numel)
    least = 1 if exact else max(1, root // 2)  # below it, columns are more than four times the rows
    rows = next((r for r in range(root, least - 1, -1) if numel % r == 0 and (exact or numel // r <= 4 * r)), root)
    return (rows, -(-numel // rows))


def folded(tensor: Tensor, dims: Dims) -> Tensor:
    """The tensor's numbers in order, in these dimensions, with zeros after the last one where they are more.

    In order in memory, too: products of matrices that lie otherwise are rounded otherwise.
    """
    spare = math.prod(dims) - tensor.numel()
    return pad(tensor.reshape(-1), (0, spare)).view(dims) if spare else tensor.contiguous().view(dims)


def unfolded(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """Back to the layer's shape; spare zeros are dropped."""
    whole = tensor.numel() == spec.numel
    return tensor.reshape(spec.shape) if whole else tensor.reshape(-1)[: spec.numel].view(spec.shape)
