"""A chain of small tensors, each one's last index being the next one's first."""

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
    folded,
    tensor_dims,
    unfolded,
)
from ..kernels import agreed_product
from ..wire import expect_parts, expect_vector
from .factored import Factored, at_ease, check_dims, check_rank, pays, shaped, total, vector_part
from .subspaces import principal


@dataclass(frozen=True)
class TensorTrain(Factored):
    """Send the layer as a train of small tensors: sum r_(k-1)·n_k·r_k·b bits. Biased, delta; or |error| <= error·|x|.

    `rank=8` joins neighbours by at most eight numbers: delta is the product of r_k / min(rows, columns) over the
    unfoldings that are cut. `error=0.1` takes the least ranks that keep that promise, delta = 1 - error²; they are
    sent, too, and the length of a message depends on the numbers. In both forms error² is the sum of all squared
    singular values that were dropped, at most N - 1 times what the best train of these ranks would lose, and
    |C(x)| <= |x|. Oseledets 2011.
    """

    tunable = RANK

    rank: int | None = None
    error: float | None = None
    dims: Dims | None = None

    def __post_init__(self) -> None:
        if (self.rank is None) == (self.error is None):
            raise CompositionError(
                f"TensorTrain: give either rank or error, got rank={self.rank}, error={self.error}; rank=8 is usual"
            )
        check_rank("TensorTrain", self.rank)
        check_dims("TensorTrain", self.dims, (7, 2, 2, 2, 2))
        if self.error is not None and not 0 < self.error < 1:
            raise CompositionError(
                f"TensorTrain: error must be in (0, 1), got {self.error}; 0.1 loses 1 % of the energy"
            )

    @cached_property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return Factored.capabilities if self.error is None else frozenset({Capability.VARIABLE_SIZE})

    def fold(self, shape: Sequence[int]) -> Dims:
        return tensor_dims(shape, self.dims)

    def forms(self, dims: Dims) -> list[Dims]:
        """Where an error is promised the shapes depend on the numbers; these are the longest."""
        return carriages(dims, [rank for rank, _ in self._cuts(dims)])

    def factors(self, block: Tensor, key: Key) -> list[Tensor]:
        del key  # deterministic
        return at_ease(block, lambda tensor: train(tensor, [rank for rank, _ in self._cuts(tuple(block.shape))]))

    def product(self, factors: Sequence[Tensor], dims: Dims, key: Key, dtype: torch.dtype) -> Tensor:
        return joined(factors, dtype)

    def law(self, dims: Dims) -> Contract:
        return Contract(delta=math.prod(rank / full for rank, full in self._cuts(dims) if rank))

    def _cuts(self, dims: Dims) -> list[tuple[int, int]]:
        """(rank, most it could be) between each mode and the next; rank 0 where nothing is cut."""
        found: list[tuple[int, int]] = []
        for full in _fulls(dims, found):
            found.append((0 if self.rank is None or self.rank >= full else self.rank, full))
        return found

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        if self.error is None:
            return super().encode(tensor, key)
        dims = self.fold(tensor.shape)
        ranks: list[int] = []
        cores: list[Tensor] = []
        if tensor.numel():
            cores = at_ease(folded(tensor, dims), lambda block: trimmed(block, self.error or 0.0, ranks))
        if not pays([tuple(core.shape) for core in cores], tensor.numel()) or not any(ranks):
            ranks, cores = [0] * (len(dims) - 1), []
        head = torch.tensor(ranks, dtype=torch.int32, device=tensor.device)
        body = vector_part("factors" if cores else "dense", cores or [tensor], tensor.dtype)
        return Payload.of([Part("ranks", head, 32.0 * len(ranks)), body])

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        if self.error is None:
            return super().decode(payload, spec, key)
        dims = self.fold(spec.shape)
        head, body = expect_parts(payload, 2, "TensorTrain")
        ranks = _checked(expect_vector(head, torch.int32, len(dims) - 1, "TensorTrain").tolist(), dims)
        if not any(ranks):
            return expect_vector(body, spec.dtype, spec.numel, "TensorTrain").view(spec.shape)
        forms = carriages(dims, ranks)
        vector = expect_vector(body, spec.dtype, total(forms), "TensorTrain").to(spec.work_dtype)
        return unfolded(joined(shaped(vector, forms), spec.dtype), spec)

    def contract(self, spec: TensorSpec) -> Contract:
        return super().contract(spec) if self.error is None else Contract(delta=1 - self.error**2)

    def num_bytes(self, spec: TensorSpec) -> float:
        """Where an error is promised: the most, for numbers without any structure."""
        ranks = 0 if self.error is None else 4 * (len(self.fold(spec.shape)) - 1)
        return super().num_bytes(spec) + ranks


def _fulls(dims: Dims, cuts: Sequence[tuple[int, int]]) -> Iterator[int]:
    """The rank an unfolding could have at most, one after the other; `cuts` grow meanwhile."""
    before, rest = 1, math.prod(dims)
    for place, size in enumerate(dims[:-1]):
        before, rest = before * size, rest // size if size else 0
        yield min(before, rest)
        before = cuts[place][0] or before


def _checked(ranks: list[int], dims: Dims) -> list[int]:
    """What an encoder could have written: no cut that cuts nothing, and fewer numbers than the layer has."""
    cuts: list[tuple[int, int]] = []
    for full, rank in zip(_fulls(dims, cuts), ranks, strict=True):
        if rank and not 0 < rank < full:
            raise DecodeError(f"TensorTrain: a rank must be 0 or from 1 to {full - 1}, got {rank}")
        cuts.append((rank, full))
    if any(ranks) and not pays(carriages(dims, ranks), math.prod(dims)):
        raise DecodeError(f"TensorTrain: ranks {ranks} would take more numbers than a layer of {dims} has")
    return ranks


def carriages(dims: Dims, ranks: Sequence[int]) -> list[Dims]:
    """Shapes (rank before, size, rank after); where nothing is cut, modes stay together."""
    found: list[Dims] = []
    before, size = 1, 1
    for own, after in zip(dims, (*ranks, 1), strict=True):
        size *= own
        if after:
            found.append((before, size, after))
            before, size = after, 1
    return found


def train(tensor: Tensor, ranks: Sequence[int]) -> list[Tensor]:
    """The tensors of a train with just these ranks between modes, 0 where modes stay together."""
    return _cut(tensor, lambda matrix, place: principal(matrix, ranks[place]) if ranks[place] else None)


def trimmed(tensor: Tensor, error: float, ranks: list[int]) -> list[Tensor]:
    """The train of least ranks whose relative error is at most `error`; the ranks are added to the list."""
    spare = error**2 * float(tensor.double().square().sum()) / max(1, tensor.dim() - 1)

    def basis(matrix: Tensor, place: int) -> Tensor | None:
        full = min(matrix.shape)
        rows = principal(matrix, full, spare)
        ranks.append(len(rows) if len(rows) < full else 0)
        return rows if len(rows) < full else None

    return _cut(tensor, basis)


def _cut(tensor: Tensor, basis: Callable[[Tensor, int], Tensor | None]) -> list[Tensor]:
    """One unfolding after the other: its basis is a carriage, what it says of the rest goes on."""
    cores, rest, before = [], tensor, 1
    rows = 1
    for place, size in enumerate(tensor.shape[:-1]):
        rows *= size
        matrix = rest.reshape(before * rows, -1)
        found = basis(matrix, place)
        if found is not None:
            found = found.to(tensor.dtype)
            cores.append(found.T.reshape(before, rows, -1))
            rest, before, rows = found @ matrix, len(found), 1
    return [*cores, rest.reshape(before, -1, 1)]


def joined(cores: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The product of a train, flat: from both ends to the middle, so that what is made on the way stays small."""
    sizes = [core.shape[1] for core in cores]
    middle = min(range(1, len(cores)), key=lambda k: max(math.prod(sizes[:k]), math.prod(sizes[k:])))
    left, right = cores[0].flatten(0, 1), cores[-1].flatten(1)
    for core in cores[1:middle]:
        left = agreed_product(left, core.flatten(1), left.dtype).view(-1, core.shape[2])
    for core in reversed(cores[middle:-1]):
        right = agreed_product(core.flatten(0, 1), right, right.dtype).view(core.shape[0], -1)
    return agreed_product(left, right, dtype)
