"""Tensor train (Oseledets, 2011): send a chain of 3-way cores, found by truncated SVDs of successive unfoldings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..core import (
    RANK,
    Capabilities,
    Capability,
    CompositionError,
    Contract,
    DecodeError,
    Dims,
    Key,
    Part,
    Payload,
    TensorSpec,
    fold,
    tensor_dims,
    unfold,
)
from ..kernels import reproducible_matmul
from ..wire import expect_parts, expect_vector
from .factored import (
    FactoredCompressor,
    check_dims,
    check_rank,
    factorize_scaled,
    is_shorter,
    make_vector_part,
    split_vector,
    total_numel,
)
from .subspaces import leading_singular_vectors


@dataclass(frozen=True)
class TensorTrain(FactoredCompressor):
    """Send the layer as a tensor train: sum r_(k-1)·n_k·r_k·b bits. Biased, delta; or |error| <= max_error·|x|.

    With `rank`, delta is the product of r_k / min(rows, columns) over the unfoldings that are truncated. With
    `max_error`, the smallest ranks are taken that keep it, delta = 1 - max_error²; they are sent, too, and the size of
    a message depends on the values. In both forms error² is the sum of all squared singular values that were dropped,
    at most N - 1 times the error² of the best train of these ranks for N modes, and |C(x)| <= |x|.

    Args:
        rank: the largest rank between two modes; give either this or max_error.
        max_error: relative error that is not exceeded, in (0, 1).
        dims: sizes of the modes for layers with that many elements; other layers keep their shape.
    """

    tunable = RANK

    rank: int | None = None
    max_error: float | None = None
    dims: Dims | None = None

    def __post_init__(self) -> None:
        if (self.rank is None) == (self.max_error is None):
            raise CompositionError(
                f"TensorTrain: give either rank or max_error, got rank={self.rank}, max_error={self.max_error}; "
                "rank=8 is usual"
            )
        check_rank("TensorTrain", self.rank)
        check_dims("TensorTrain", self.dims, (7, 2, 2, 2, 2))
        if self.max_error is not None and not 0 < self.max_error < 1:
            raise CompositionError(
                f"TensorTrain: max_error must be in (0, 1), got {self.max_error}; 0.1 loses at most 1 % of the energy"
            )

    @cached_property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return FactoredCompressor.capabilities if self.max_error is None else frozenset({Capability.VARIABLE_SIZE})

    def fold_dims(self, shape: Sequence[int]) -> Dims:
        return tensor_dims(shape, self.dims)

    def factor_shapes(self, dims: Dims) -> list[Dims]:
        """Return the shapes of the cores; with max_error, which depends on the values, the largest possible."""
        return core_shapes(dims, [rank for rank, _ in self._truncations(dims)])

    def factorize(self, block: Tensor, key: Key) -> list[Tensor]:
        del key  # deterministic
        ranks = [rank for rank, _ in self._truncations(tuple(block.shape))]
        return factorize_scaled(block, lambda tensor: decompose_by_ranks(tensor, ranks))

    def multiply(self, factors: Sequence[Tensor], dims: Dims, key: Key, dtype: torch.dtype) -> Tensor:
        return multiply_cores(factors, dtype)

    def factored_contract(self, dims: Dims) -> Contract:
        return Contract(delta=math.prod(rank / full for rank, full in self._truncations(dims) if rank))

    def _truncations(self, dims: Dims) -> list[tuple[int, int]]:
        """Return (rank, largest rank) between each mode and the next; rank 0 where nothing is truncated."""
        truncations: list[tuple[int, int]] = []
        for full in _full_ranks(dims, truncations):
            truncations.append((0 if self.rank is None or self.rank >= full else self.rank, full))
        return truncations

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        if self.max_error is None:
            return super().encode(tensor, key)
        max_error, dims = self.max_error, self.fold_dims(tensor.shape)
        ranks: list[int] = []
        cores: list[Tensor] = []
        if tensor.numel():
            cores = factorize_scaled(fold(tensor, dims), lambda block: decompose_by_error(block, max_error, ranks))
        if not is_shorter([tuple(core.shape) for core in cores], tensor.numel()) or not any(ranks):
            ranks, cores = [0] * (len(dims) - 1), []
        head = torch.tensor(ranks, dtype=torch.int32, device=tensor.device)
        body = make_vector_part("factors" if cores else "dense", cores or [tensor], tensor.dtype)
        return Payload.of([Part("ranks", head, 32.0 * len(ranks)), body])

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        if self.max_error is None:
            return super().decode(payload, spec, key)
        dims = self.fold_dims(spec.shape)
        head, body = expect_parts(payload, 2, "TensorTrain")
        ranks = _check_ranks(expect_vector(head, torch.int32, len(dims) - 1, "TensorTrain").tolist(), dims)
        if not any(ranks):
            return expect_vector(body, spec.dtype, spec.numel, "TensorTrain").view(spec.shape)
        shapes = core_shapes(dims, ranks)
        vector = expect_vector(body, spec.dtype, total_numel(shapes), "TensorTrain").to(spec.work_dtype)
        return unfold(multiply_cores(split_vector(vector, shapes), spec.dtype), spec)

    def contract(self, spec: TensorSpec) -> Contract:
        return super().contract(spec) if self.max_error is None else Contract(delta=1 - self.max_error**2)

    def num_bytes(self, spec: TensorSpec) -> float:
        """Return the size; with max_error the largest, that of values without structure."""
        ranks = 0 if self.max_error is None else 4 * (len(self.fold_dims(spec.shape)) - 1)
        return super().num_bytes(spec) + ranks


def _full_ranks(dims: Dims, truncations: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Yield the largest rank of one unfolding after another; the caller appends to `truncations` meanwhile."""
    before, after = 1, math.prod(dims)
    for mode, size in enumerate(dims[:-1]):
        before, after = before * size, after // size if size else 0
        yield min(before, after)
        before = truncations[mode][0] or before


def _check_ranks(ranks: list[int], dims: Dims) -> list[int]:
    """Raise DecodeError for ranks that no encoder sends: above the largest rank, or longer than the dense layer."""
    truncations: list[tuple[int, int]] = []
    for full, rank in zip(_full_ranks(dims, truncations), ranks, strict=True):
        if rank and not 0 < rank < full:
            raise DecodeError(f"TensorTrain: a rank must be 0 or from 1 to {full - 1}, got {rank}")
        truncations.append((rank, full))
    if any(ranks) and not is_shorter(core_shapes(dims, ranks), math.prod(dims)):
        raise DecodeError(f"TensorTrain: ranks {ranks} would take more numbers than a layer of {dims} has")
    return ranks


def core_shapes(dims: Dims, ranks: Sequence[int]) -> list[Dims]:
    """Return shapes (rank before, size, rank after); modes with rank 0 between them share a core."""
    shapes: list[Dims] = []
    before, size = 1, 1
    for own, after in zip(dims, (*ranks, 1), strict=True):
        size *= own
        if after:
            shapes.append((before, size, after))
            before, size = after, 1
    return shapes


def decompose_by_ranks(tensor: Tensor, ranks: Sequence[int]) -> list[Tensor]:
    """Return the cores of a train with these ranks between modes; 0 keeps two modes in one core."""
    return _decompose(
        tensor, lambda matrix, mode: leading_singular_vectors(matrix, ranks[mode]) if ranks[mode] else None
    )


def decompose_by_error(tensor: Tensor, max_error: float, ranks: list[int]) -> list[Tensor]:
    """Return the cores of the train of least ranks within a relative error; the ranks are appended to `ranks`."""
    max_energy_lost = max_error**2 * float(tensor.double().square().sum()) / max(1, tensor.dim() - 1)

    def find_basis(matrix: Tensor, mode: int) -> Tensor | None:
        full = min(matrix.shape)
        rows = leading_singular_vectors(matrix, full, max_energy_lost)
        ranks.append(len(rows) if len(rows) < full else 0)
        return rows if len(rows) < full else None

    return _decompose(tensor, find_basis)


def _decompose(tensor: Tensor, find_basis: Callable[[Tensor, int], Tensor | None]) -> list[Tensor]:
    """Decompose one unfolding after another: its basis becomes a core, the coefficients go on to the next."""
    cores, coefficients, before = [], tensor, 1
    rows = 1
    for mode, size in enumerate(tensor.shape[:-1]):
        rows *= size
        matrix = coefficients.reshape(before * rows, -1)
        basis = find_basis(matrix, mode)
        if basis is not None:
            basis = basis.to(tensor.dtype)
            cores.append(basis.T.reshape(before, rows, -1))
            coefficients, before, rows = basis @ matrix, len(basis), 1
    return [*cores, coefficients.reshape(before, -1, 1)]


def multiply_cores(cores: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the product of a train, flat; from both ends to the middle, so that intermediate results stay small."""
    sizes = [core.shape[1] for core in cores]
    middle = min(range(1, len(cores)), key=lambda k: max(math.prod(sizes[:k]), math.prod(sizes[k:])))
    left, right = cores[0].flatten(0, 1), cores[-1].flatten(1)
    for core in cores[1:middle]:
        left = reproducible_matmul(left, core.flatten(1), left.dtype).view(-1, core.shape[2])
    for core in reversed(cores[middle:-1]):
        right = reproducible_matmul(core.flatten(0, 1), right, right.dtype).view(core.shape[0], -1)
    return reproducible_matmul(left, right, dtype)
