"""What a program may ask of its driver, and what each request costs on the wire."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
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
    """Answered with the payloads of all ranks (`Gathered`). Their lengths may differ, their form may not.

    expects: about how many bytes may come from one rank, where its own payload may be much shorter; with it, a driver
    tells a long message from a header that is wrong. It is not sent.
    """

    payload: Payload
    labels: tuple[Label, ...] = ()
    step: int = 0
    expects: int = 0


@dataclass(frozen=True, eq=False)
class AllToAll:
    """payloads[r] goes to rank r; answered with what all ranks sent to this one (`Gathered`). All of one form.

    expects: as in AllGather.
    """

    payloads: tuple[Payload, ...]
    labels: tuple[Label, ...] = ()
    step: int = 0
    expects: int = 0


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Answered with root's payload. On other ranks the payload is a form only: as many parts, of the same types.

    expects: as in AllGather; ranks whose form is much shorter than root's payload say it here.
    """

    payload: Payload
    root: int = 0
    labels: tuple[Label, ...] = ()
    step: int = 0
    expects: int = 0


@dataclass(frozen=True, eq=False)
class Swap:
    """A payload to each named rank; answered with one from each of `sources`, in their order (`Gathered`).

    All of one form: `form` has the types of the parts, which a rank that only receives must say. Nobody but these
    partners hears of it. among: who talks to whom, in words that are equal on all ranks; Swaps of one round that have
    them in common have their partners in common too, and travel as one. forgiving: this rank can do without a source
    that had to raise its flag; the answer names it in `absent`. Else its flag ends the step for whoever hears of it.
    expects: about how many bytes may come from one source, where nothing as long is sent. Labels of a rank that sends
    nothing say what it is about, and are not counted.
    """

    outgoing: tuple[tuple[int, Payload], ...]
    sources: tuple[int, ...]
    form: tuple[torch.dtype, ...] = ()
    among: str = ""
    forgiving: bool = False
    expects: int = 0
    labels: tuple[Label, ...] = ()
    step: int = 0

    def __post_init__(self) -> None:
        for who in (self.receivers, self.sources):
            if len(set(who)) < len(who):
                raise ValueError(f"Swap: each partner once, got {list(who)}; join what goes to one into one payload")
        if not self.form and self.outgoing:
            object.__setattr__(self, "form", types_of(self.outgoing[0][1]))
        if any(types_of(payload) != self.form for _, payload in self.outgoing):
            forms = sorted({_names(types_of(payload)) for _, payload in self.outgoing})
            raise TypeError(f"Swap: payloads must be of the form ({_names(self.form)}), got ({'), ('.join(forms)})")

    @property
    def receivers(self) -> tuple[int, ...]:
        return tuple(to for to, _ in self.outgoing)


def types_of(payload: Payload) -> tuple[torch.dtype, ...]:
    return tuple([part.dtype for part in payload.parts])


class Gathered(tuple[Payload, ...]):
    """The answer to a gather: one payload a rank, or one a source.

    What every rank makes of an AllGather's need be made only once. Under `lockstep` all ranks hold the same answer (it
    is `shared`), so `once` saves n - 1 of n decodings; elsewhere it just computes.
    """

    _made: dict[Hashable, Any]
    shared = False
    absent: frozenset[int] = frozenset()  # sources of a forgiving Swap whose payload is not to be used

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


Request: TypeAlias = AllReduce | AllGather | AllToAll | Broadcast | Swap
Program: TypeAlias = Generator[Request, Any, T]


def reduce_labels(layer: str, tensor: Tensor, kind: str = "values") -> tuple[Label, ...]:
    return (Label(layer, kind, nbytes_of(tensor), 8.0 * nbytes_of(tensor)),)


def payload_labels(layer: str, payload: Payload) -> tuple[Label, ...]:
    return tuple([Label(layer, kind, part.nbytes, bits) for kind, part, bits in payload.remarks()])


def payload_for(request: AllGather | AllToAll | Broadcast | Swap, to: int) -> Payload:
    """What a rank hands over for another."""
    if isinstance(request, Swap):
        return dict(request.outgoing).get(to, Payload(()))
    return request.payloads[to] if isinstance(request, AllToAll) else request.payload


def describe(request: Request) -> str:
    """One line for an error text; two ranks agree exactly if their lines and steps are equal."""
    layers = _some_names(list(dict.fromkeys([label.layer for label in request.labels if label.layer])))
    if isinstance(request, AllReduce):
        numbers = f"{request.tensor.numel()} {_name(request.tensor)}"
        form = f"AllReduce({request.op.value}) of {numbers}, {nbytes_of(request.tensor)} B"
    elif isinstance(request, Swap):
        among = f" among {request.among}" if request.among else ""
        form = f"Swap{among} of ({_names(request.form)})"
    else:
        root = f" from {request.root}" if isinstance(request, Broadcast) else ""
        form = f"{type(request).__name__}{root} of ({_names(types_of(payload_for(request, 0)))})"
    what = layers or ", ".join(dict.fromkeys(label.kind for label in request.labels))
    return f"{form} for {what}" if what else form


def _some_names(names: list[str], most: int = 4) -> str:
    """The first few; a checksum stands for the others, so that a long list still tells one model from another."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])}, ... ({len(names)} layers, {zlib.crc32(repr(names).encode()):08x})"


def _name(tensor: Tensor) -> str:
    return _names((tensor.dtype,))


@lru_cache  # the same bucket asks at every step
def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def shard_sizes(numel: int, size: int) -> list[int]:
    """Cut `numel` elements into one piece a rank, the first ones a little longer."""
    return [numel // size + (rank < numel % size) for rank in range(size)]


def tree_children(rank: int, size: int, root: int) -> list[int]:
    """To whom a rank passes a broadcast on, in a binomial tree."""
    place = (rank - root) % size
    spans = (1 << i for i in range(size.bit_length()))
    return [(place + span + root) % size for span in spans if span > place and place + span < size]


def reduced_bytes(nbytes: float, size: int) -> float:
    """What one rank sends for an all-reduce of so many bytes."""
    return 2 * (size - 1) / size * nbytes


def wire_bytes(request: Request, world: World, sizes: Sequence[int] | None = None) -> tuple[int, int]:
    """Bytes a rank sends and receives for the data of one request.

    `sizes` are the payload bytes that each rank (for a Swap: each source) has for this one; without them, all ranks'
    are taken to be alike.

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
    if isinstance(request, Swap):
        leaving = [payload.nbytes for _, payload in request.outgoing]
        return sum(leaving), sum(leaving[:1]) * len(request.sources) if sizes is None else sum(sizes)
    outgoing = [payload_for(request, to).nbytes for to in range(size)]
    sizes = outgoing if sizes is None else sizes
    if not isinstance(request, Broadcast):
        return sum(outgoing) - outgoing[rank], sum(sizes) - sizes[rank]
    root = request.root
    return len(tree_children(rank, size, root)) * sizes[root], 0 if rank == root else sizes[root]
