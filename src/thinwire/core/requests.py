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
    OR = "or"  # of bits: whole numbers only, bitmaps travel as uint8


@dataclass(frozen=True, eq=False)
class AllReduce:
    """Answered with the combination of all ranks' tensors, of the same shape."""

    tensor: Tensor
    op: Op = Op.SUM
    labels: tuple[Label, ...] = ()
    step: int = 0

    def __post_init__(self) -> None:
        if self.op is Op.OR and (self.tensor.is_floating_point() or self.tensor.is_complex()):
            raise TypeError(f"AllReduce(or) combines bits, got {self.tensor.dtype}; send uint8")


@dataclass(frozen=True, eq=False)
class AllGather:
    """Answered with the payloads of all ranks (`Gathered`). Their lengths may differ, their form may not."""

    payload: Payload
    labels: tuple[Label, ...] = ()
    step: int = 0


@dataclass(frozen=True, eq=False)
class AllToAll:
    """payloads[r] goes to rank r; answered with what all ranks sent to this one (`Gathered`). All of one form."""

    payloads: tuple[Payload, ...]
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
    """The answer to a gather: one payload a rank. What every rank makes of an AllGather's need be made only once.

    Under `lockstep` all ranks hold the same answer (it is `shared`), so `once` saves n - 1 of n decodings; elsewhere it
    just computes.
    """

    _made: dict[Hashable, Any]
    shared = False

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        made = self.__dict__.setdefault("_made", {})
        if name not in made:
            made[name] = make()
        return made[name]  # type: ignore[no-any-return]

    def own(self, name: Hashable, make: Callable[[Tensor | None], Tensor], out: Tensor | None = None) -> Tensor:
        """`once`, for a rank that will write into it; made in `out`, if `make` can, where nobody shares it."""
        return self.once(name, lambda: make(None)).clone() if self.shared else make(out)

    def also(self, shared: bool) -> Gathered:
        """This answer, held by several ranks if `shared`."""
        self.shared = shared
        return self


Request: TypeAlias = AllReduce | AllGather | AllToAll | Broadcast
Program: TypeAlias = Generator[Request, Any, T]


def reduce_labels(layer: str, tensor: Tensor, kind: str = "values") -> tuple[Label, ...]:
    return (Label(layer, kind, nbytes_of(tensor), 8.0 * nbytes_of(tensor)),)


def payload_labels(layer: str, payload: Payload) -> tuple[Label, ...]:
    return tuple(Label(layer, kind, nbytes_of(part), bits) for kind, part, bits in payload.remarks())


def payload_for(request: AllGather | AllToAll | Broadcast, to: int) -> Payload:
    """What a rank hands over for another."""
    return request.payloads[to] if isinstance(request, AllToAll) else request.payload


def describe(request: Request) -> str:
    """One line for an error text; two ranks agree exactly if their lines and steps are equal."""
    layers = _some_names(list(dict.fromkeys(label.layer for label in request.labels if label.layer)))
    if isinstance(request, AllReduce):
        numbers = f"{request.tensor.numel()} {_name(request.tensor)}"
        form = f"AllReduce({request.op.value}) of {numbers}, {nbytes_of(request.tensor)} B"
    else:
        root = f" from {request.root}" if isinstance(request, Broadcast) else ""
        form = f"{type(request).__name__}{root} of ({', '.join(map(_name, payload_for(request, 0).parts))})"
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
    """Bytes a rank sends and receives for the data of one request.

    `sizes` are the payload bytes that each rank has for this one; without them, all ranks' are taken to be alike.

    An all-reduce is a reduce-scatter followed by a gather: a ring or direct exchange sends the same bytes, 2(n-1)/n of
    the tensor. Headers and lengths come on top; drivers count them as their own kind.
    """
    rank, size = world
    if size == 1:
        return 0, 0
    if isinstance(request, AllReduce):
        own = nbytes_of(request.tensor)
        mine = shard_sizes(request.tensor.numel(), size)[rank] * request.tensor.element_size()
        return (own - mine) + (size - 1) * mine, (size - 1) * mine + (own - mine)
    outgoing = [payload_for(request, to).nbytes for to in range(size)]
    sizes = outgoing if sizes is None else sizes
    if not isinstance(request, Broadcast):
        return sum(outgoing) - outgoing[rank], sum(sizes) - sizes[rank]
    root = request.root
    return len(tree_children(rank, size, root)) * sizes[root], 0 if rank == root else sizes[root]
