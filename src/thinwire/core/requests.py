"""What a program may ask of its driver, and what each request costs on the wire."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, TypeVar

from torch import Tensor

from .tensors import Payload, nbytes_of

T = TypeVar("T")


class World(NamedTuple):
    """Which of how many."""

    rank: int
    size: int


class Label(NamedTuple):
    """Whose bytes these are: the meter reads labels and knows no formula."""

    layer: str
    kind: str
    nbytes: int
    model_bits: float


class Op(str, Enum):
    """How an all-reduce combines."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, eq=False)
class AllReduce:
    """Answered with the combination of all ranks' tensors, of the same shape."""

    tensor: Tensor
    op: Op = Op.SUM
    labels: tuple[Label, ...] = ()
    step: int = 0


@dataclass(frozen=True, eq=False)
class AllGather:
    """Answered with the payloads of all ranks (`Gathered`). Their lengths may differ, their form may not."""

    payload: Payload
    labels: tuple[Label, ...] = ()
    step: int = 0


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Answered with root's payload. On other ranks the payload is a form only: as many parts, of the same types."""

    payload: Payload
    root: int = 0
    labels: tuple[Label, ...] = ()
    step: int = 0


class Gathered(tuple[Payload, ...]):
    """The answer to an AllGather: one payload a rank. What every rank makes of it alike need be made only once.

    Under `lockstep` all ranks hold the same answer, so `once` saves n - 1 of n decodings; elsewhere it just computes.
    """

    _made: dict[Hashable, Any]

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        made = self.__dict__.setdefault("_made", {})
        if name not in made:
            made[name] = make()
        return made[name]  # type: ignore[no-any-return]


Request: TypeAlias = AllReduce | AllGather | Broadcast
Program: TypeAlias = Generator[Request, Any, T]


def reduce_labels(layer: str, tensor: Tensor, kind: str = "values") -> tuple[Label, ...]:
    return (Label(layer, kind, nbytes_of(tensor), 8.0 * nbytes_of(tensor)),)


def payload_labels(layer: str, payload: Payload) -> tuple[Label, ...]:
    return tuple(Label(layer, kind, nbytes_of(part), bits) for kind, part, bits in payload.remarks())


def request_bytes(request: Request) -> int:
    """Payload bytes: what this rank hands over, before any topology."""
    return nbytes_of(request.tensor) if isinstance(request, AllReduce) else request.payload.nbytes


def describe(request: Request) -> str:
    """One line for an error text; two ranks agree exactly if their lines and steps are equal."""
    layers = _some_names(list(dict.fromkeys(label.layer for label in request.labels if label.layer)))
    if isinstance(request, AllReduce):
        numbers = f"{request.tensor.numel()} {_name(request.tensor)}"
        form = f"AllReduce({request.op.value}) of {numbers}, {request_bytes(request)} B"
    elif isinstance(request, AllGather):
        form = f"AllGather of ({', '.join(map(_name, request.payload.parts))})"
    else:
        form = f"Broadcast from {request.root} of ({', '.join(map(_name, request.payload.parts))})"
    return f"{form} for {layers}" if layers else form


def _some_names(names: list[str], most: int = 4) -> str:
    """The first few; a checksum stands for the others, so that a long list still tells one model from another."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])}, ... ({len(names)} layers, {zlib.crc32(repr(names).encode()):08x})"


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def shard_sizes(numel: int, size: int) -> list[int]:
    """Cut `numel` elements into one piece a rank, the first ones a little longer."""
    return [numel // size + (rank < numel % size) for rank in range(size)]


def tree_children(rank: int, size: int, root: int) -> list[int]:
    """To whom a rank passes a broadcast on, in a binomial tree."""
    place = (rank - root) % size
    spans = (1 << i for i in range(size.bit_length()))
    return [(place + span + root) % size for span in spans if span > place and place + span < size]


def wire_bytes(request: Request, world: World, sizes: Sequence[int] | None = None) -> tuple[int, int]:
    """Bytes a rank sends and receives for the data of one request; `sizes` are all ranks' payload bytes if they differ.

    An all-reduce is a reduce-scatter followed by a gather: a ring or direct exchange sends the same bytes, 2(n-1)/n of
    the tensor. Headers and lengths come on top; drivers count them as their own kind.
    """
    rank, size = world
    if size == 1:
        return 0, 0
    own = request_bytes(request)
    sizes = [own] * size if sizes is None else sizes
    if isinstance(request, AllReduce):
        mine = shard_sizes(request.tensor.numel(), size)[rank] * request.tensor.element_size()
        return (own - mine) + (size - 1) * mine, (size - 1) * mine + (own - mine)
    if isinstance(request, AllGather):
        return (size - 1) * own, sum(sizes) - sizes[rank]
    root = request.root
    return len(tree_children(rank, size, root)) * sizes[root], 0 if rank == root else sizes[root]
