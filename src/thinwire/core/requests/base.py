"""What every request answers for itself: its signature, its cost, how it is merged, what its answer is.

A program yields requests; a driver carries them. `fuse`, the meter and the drivers know this interface only, so a new
kind of request is one class here and one handler in each driver that carries it over a real link.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from ..tensors import Payload, nbytes_of

if TYPE_CHECKING:
    from typing_extensions import Self

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


class Request(ABC):
    """One request of one rank. All ranks of a group ask for the same at the same time, unless it has a `scope`."""

    labels: tuple[Label, ...]
    step: int
    expects = 0  # about how many bytes may come from one rank, where our own payload may be much shorter; not sent
    on_wire: ClassVar[bool] = True  # whether it needs a link at all
    expands: ClassVar[bool] = False  # whether `fuse` answers it by a program, so that no driver sees it
    flag_order: ClassVar[int] = 9  # of several requests, the bad-step flag travels with the lowest that carries it

    # What it is

    @abstractmethod
    def describe_form(self) -> str:
        """Kind, types and sizes: what must be equal on all ranks, in words."""

    def describe(self) -> str:
        """One line for an error text; two ranks agree exactly if their lines and steps are equal."""
        layers = _some_names(list(dict.fromkeys([label.layer for label in self.labels if label.layer])))
        what = layers or ", ".join(dict.fromkeys(label.kind for label in self.labels))
        return f"{self.describe_form()} for {what}" if what else self.describe_form()

    def signature(self) -> int:
        """The checksum of `describe()`, which ranks compare before they exchange."""
        return zlib.crc32(self.describe().encode())

    def check(self, world: World) -> None:
        """A ProtocolError if this world has no such ranks."""
        return

    def contributes(self, world: World) -> bool:
        """Whether this rank hands something over; else its labels show a form only and are not counted."""
        return True

    # What it costs

    def payload_to(self, rank: int) -> Payload:
        """What this rank hands over for another, as a framed message; empty where no framed message follows."""
        return Payload(())

    def wire_bytes(self, world: World, sizes: Sequence[int] | None = None) -> tuple[int, int]:
        """Bytes a rank sends and receives for the data of this request.

        `sizes` are the payload bytes that each rank (or each source) has for this one; without them, all ranks' are
        taken to be alike. Headers and lengths come on top; drivers count them as their own kind.
        """
        return 0, 0

    def headers(self, world: World) -> tuple[int, int]:
        """How many agreement headers this rank sends and receives."""
        return (world.size - 1, world.size - 1) if self.on_wire else (0, 0)

    def frames(self, requests: Sequence[Self], world: World) -> tuple[list[Payload], list[Payload]]:
        """The framed payloads that this rank sends and receives, where `requests` are those of all ranks."""
        return [], []

    def sizes_for(self, requests: Sequence[Self], rank: int) -> list[int]:
        """Payload bytes that each rank (or each source) has for this one, where `requests` are those of all ranks."""
        return [request.payload_to(rank).nbytes for request in requests]

    # How several of one round travel as one

    @abstractmethod
    def merge_key(self) -> tuple[str, ...]:
        """Requests of one round with equal keys are merged; keys also order what is sent, alike on all ranks."""

    def merge(self, group: Sequence[Self]) -> Self:
        """One request for the whole group, of which this is the first."""
        raise NotImplementedError

    def split(self, group: Sequence[Self], answer: Any) -> list[Any]:
        """The answer of the merged request, cut up again."""
        raise NotImplementedError

    def expand(self, group: Sequence[Self]) -> Program[list[Any]]:
        """Of a request that `expands`: the program that answers the whole group."""
        raise NotImplementedError

    # The bad-step flag

    def make_flag(self, flag: bool, group: Sequence[Self]) -> Request | None:
        """A request that travels with this one's group and carries one more bit; None if it cannot."""
        return None

    def read_flag(self, answer: Any, flag: bool) -> tuple[bool, frozenset[int]]:
        """Of a request that `make_flag` made: whether the step is bad, and sources that are to be left out instead."""
        raise NotImplementedError

    def leave_out(self, answer: Any, absent: frozenset[int]) -> None:
        """Tell the program that asked which sources are to be left out of the answer."""
        return

    def scope(self) -> str | None:
        """Partners that hear of it, in words that are equal on all ranks; None: all ranks."""
        return None

    # Its answer

    @abstractmethod
    def answer_alone(self) -> Any:
        """In a world of one."""

    def answer_alike(self, size: int) -> Any:
        """What rank 0 would hear from so many ranks if all of them had asked for the same."""
        return self.answer_alone()

    def answer_all(self, requests: Sequence[Self]) -> list[Any]:
        """Every rank's answer, where `requests` are those of all ranks; this is rank 0's."""
        return [request.answer_alone() for request in requests]


Program: TypeAlias = Generator[Request, Any, T]


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
        """`once`, for a rank that will write into it; made in `out`, if `make` can, where it is not shared."""
        return self.once(name, lambda: make(None)).clone() if self.shared else make(out)

    def also(self, shared: bool) -> Gathered:
        """This answer, held by several ranks if `shared`."""
        self.shared = shared
        return self


def flag_payload(flag: bool) -> tuple[Payload, Label]:
    """The bad-step flag as a payload of one byte, and its label."""
    return Payload((torch.tensor([flag], dtype=torch.uint8),)), Label("", "flag", 1, 1.0)


def all_labels(group: Sequence[Request]) -> tuple[Label, ...]:
    return tuple([label for request in group for label in request.labels])


def all_expected(group: Sequence[Request]) -> int:
    return sum([request.expects for request in group])


def join(payloads: Sequence[Payload]) -> Payload:
    return Payload(tuple([part for payload in payloads for part in payload.parts]))


def cut(payload: Payload, counts: Sequence[int]) -> list[Payload]:
    ends = accumulate(counts)
    return [Payload(payload.parts[end - count : end]) for count, end in zip(counts, ends, strict=True)]


def cut_all(answer: Gathered, counts: Sequence[int]) -> list[Gathered]:
    """One rank's answer holds all layers; one layer's answer holds all ranks."""
    by_layer = zip(*[cut(payload, counts) for payload in answer], strict=True) if answer else ((),) * len(counts)
    return [Gathered(payloads).also(answer.shared) for payloads in by_layer]


def any_raised(answer: Gathered) -> bool:
    """Whether any of the payloads is a raised flag."""
    return answer.once("flag", lambda: any(bool(payload.parts[0].any()) for payload in answer))


def reduce_labels(layer: str, tensor: Tensor, kind: str = "values") -> tuple[Label, ...]:
    return (Label(layer, kind, nbytes_of(tensor), 8.0 * nbytes_of(tensor)),)


def payload_labels(layer: str, payload: Payload) -> tuple[Label, ...]:
    return tuple([Label(layer, kind, part.nbytes, bits) for kind, part, bits in payload.remarks()])


def types_of(payload: Payload) -> tuple[torch.dtype, ...]:
    return tuple([part.dtype for part in payload.parts])


@lru_cache  # the same bucket asks at every step
def type_names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _some_names(names: list[str], most: int = 4) -> str:
    """The first few; a checksum stands for the others, so that a long list still tells one model from another."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])}, ... ({len(names)} layers, {zlib.crc32(repr(names).encode()):08x})"
