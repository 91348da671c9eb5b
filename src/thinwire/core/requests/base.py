"""The interface of requests: signature, cost, merging, the bad-step flag, and answers.

A program yields requests; a driver performs them. `fuse`, the meter and the drivers use this interface only, so a new
kind of request is one class here and one handler in each driver that performs it over a real link.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from ..payloads import Payload

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


class World(NamedTuple):
    """A rank and the number of ranks."""

    rank: int
    size: int


class Addend(NamedTuple):
    """A tensor to be summed over ranks, and where a driver may write the sum."""

    tensor: Tensor
    out: Tensor | None


class Label(NamedTuple):
    """The layer and kind of some bytes of a request, for the meter; `model_bits` is their size by a paper's formula."""

    layer: str
    kind: str
    num_bytes: int
    model_bits: float


class Request(ABC):
    """One request of one rank. All ranks yield the same request at the same time, unless it has a `scope`."""

    labels: tuple[Label, ...]
    step: int
    expected_bytes = 0  # upper estimate of the bytes from one rank, where our own payload may be much shorter; not sent
    on_wire: ClassVar[bool] = True  # whether it needs a link
    expands: ClassVar[bool] = False  # whether `fuse` answers it by a program, so that it never reaches a driver
    flag_order: ClassVar[int] = 9  # of several requests, the lowest that can carries the bad-step flag

    # Description

    @abstractmethod
    def describe_form(self) -> str:
        """Kind, types and sizes as a text: what must be equal on all ranks."""

    def describe(self) -> str:
        """One line for error texts. Two ranks agree exactly if their lines and steps are equal."""
        layers = _some_names(list(dict.fromkeys([label.layer for label in self.labels if label.layer])))
        content = layers or ", ".join(dict.fromkeys(label.kind for label in self.labels))
        return f"{self.describe_form()} for {content}" if content else self.describe_form()

    def signature(self) -> int:
        """The checksum of `describe()`, which drivers compare between ranks before each collective."""
        return zlib.crc32(self.describe().encode())

    def check(self, world: World) -> None:
        """Raise ProtocolError if the request names ranks that this world does not have."""
        return

    def contributes(self, world: World) -> bool:
        """Whether this rank sends data. If not, its labels only describe the request and are not counted."""
        return True

    # Cost

    def payload_to(self, rank: int) -> Payload:
        """This rank's framed payload for another rank; empty for requests without framed messages."""
        return Payload(())

    def wire_bytes(self, world: World, sizes: Sequence[int] | None = None) -> tuple[int, int]:
        """Bytes that a rank sends and receives for the data of this request, without headers and lengths.

        Args:
            world: the rank and the number of ranks.
            sizes: payload bytes that each rank (or each source) sends to this one; by default as many as this rank's.
        """
        return 0, 0

    def headers(self, world: World) -> tuple[int, int]:
        """How many agreement headers this rank sends and receives."""
        return (world.size - 1, world.size - 1) if self.on_wire else (0, 0)

    def frames(self, requests: Sequence[Self], world: World) -> tuple[list[Payload], list[Payload]]:
        """The framed payloads that this rank sends and receives, given the requests of all ranks."""
        return [], []

    def members(self) -> tuple[Request, ...]:
        """The requests that a meter counts for this one: itself, or those of a group."""
        return (self,)

    def has_common_header(self, world: World) -> bool:
        """Whether all members travel in one message."""
        return True

    def sizes_for(self, requests: Sequence[Self], rank: int) -> list[int]:
        """Payload bytes that each rank (or each source) sends to this one, given the requests of all ranks."""
        return [request.payload_to(rank).num_bytes for request in requests]

    # Merging the requests of one round

    @abstractmethod
    def merge_key(self) -> tuple[str, ...]:
        """Requests of one round with equal keys are merged. Keys also give the order of sending, equal on all ranks."""

    def merge(self, batch: Sequence[Self]) -> Self:
        """One request for the whole batch, of which this is the first."""
        raise NotImplementedError

    def split(self, batch: Sequence[Self], answer: Any) -> list[Any]:
        """The answers of the batch, out of the answer of the merged request."""
        raise NotImplementedError

    def expand(self, batch: Sequence[Self]) -> Program[list[Any]]:
        """For a request that `expands`: the program that answers the whole batch."""
        raise NotImplementedError

    def group_payload(self) -> Payload | None:
        """The data that this rank sends to every other, if the request can travel in one message with others."""
        return None

    def group_tail(self) -> Addend | None:
        """A long tensor to be summed, if it can be sent behind the data of other requests without a copy."""
        return None

    def answer_group(self, payloads: GatheredPayloads) -> Any:
        """For a request with `group_payload`: the answer, given the data of all ranks."""
        raise NotImplementedError

    # The bad-step flag

    def make_flag(self, flag: bool, batch: Sequence[Self]) -> Request | None:
        """A request that is merged with this batch and carries the flag; None if this kind cannot carry it."""
        return None

    def read_flag(self, answer: Any, flag: bool) -> tuple[bool, frozenset[int]]:
        """For a request made by `make_flag`: whether the step is bad, and the sources to exclude instead."""
        raise NotImplementedError

    def mark_missing(self, answer: Any, missing: frozenset[int]) -> None:
        """Record in the answer which sources must not be used."""
        return

    def scope(self) -> str | None:
        """The ranks that take part, as a text that is equal on all ranks; None: all ranks."""
        return None

    # Answers

    @abstractmethod
    def answer_alone(self) -> Any:
        """The answer in a world of one rank."""

    def answer_if_identical(self, size: int) -> Any:
        """Rank 0's answer if `size` ranks all made this same request."""
        return self.answer_alone()

    def answer_all(self, requests: Sequence[Self]) -> list[Any]:
        """The answers of all ranks, given their requests; `self` is rank 0's."""
        return [request.answer_alone() for request in requests]


Program: TypeAlias = Generator[Request, Any, T]


class GatheredPayloads(tuple[Payload, ...]):
    """The answer to a gather: one payload per rank, or per source.

    Under `lockstep` all ranks hold the same answer to an AllGather (it is `shared`), so what every rank computes from
    it is computed once. Elsewhere nothing is cached.
    """

    _cache: dict[Hashable, Any]
    shared = False
    missing: frozenset[int] = frozenset()  # sources with payloads that must not be used, of a NeighborExchange

    def cached(self, name: Hashable, make: Callable[[], T]) -> T:
        """The result of `make()`, computed at the first call with this name."""
        cache = self.__dict__.setdefault("_cache", {})
        if name not in cache:
            cache[name] = make()
        return cache[name]  # type: ignore[no-any-return]

    def cached_copy(self, name: Hashable, make: Callable[[Tensor | None], Tensor], out: Tensor | None = None) -> Tensor:
        """`cached`, as a copy that the caller may change. If not shared, `make` may write to `out`."""
        return self.cached(name, lambda: make(None)).clone() if self.shared else make(out)

    def mark_shared(self, shared: bool = True) -> GatheredPayloads:
        """Set whether several ranks hold this very object; returns it."""
        self.shared = shared
        return self


def flag_payload(flag: bool) -> tuple[Payload, Label]:
    """The bad-step flag as a payload of one byte, with its label."""
    return Payload((torch.tensor([flag], dtype=torch.uint8),)), Label("", "flag", 1, 1.0)


def all_labels(batch: Sequence[Request]) -> tuple[Label, ...]:
    """The labels of all requests."""
    return tuple([label for request in batch for label in request.labels])


def sum_expected_bytes(batch: Sequence[Request]) -> int:
    """The sum of `expected_bytes` of all requests."""
    return sum([request.expected_bytes for request in batch])


def cut_all(answer: GatheredPayloads, counts: Sequence[int]) -> list[GatheredPayloads]:
    """From one payload per rank with all layers to one answer per layer with all ranks."""
    by_layer = zip(*[payload.cut(counts) for payload in answer], strict=True) if answer else ((),) * len(counts)
    return [GatheredPayloads(payloads).mark_shared(answer.shared) for payloads in by_layer]


def any_raised(answer: GatheredPayloads) -> bool:
    """Whether any payload is a raised bad-step flag."""
    return answer.cached("flag", lambda: any(bool(payload.parts[0].any()) for payload in answer))


def reduce_labels(layer: str, tensor: Tensor, kind: str = "values") -> tuple[Label, ...]:
    """The label of a tensor that is reduced."""
    return (Label(layer, kind, tensor.nbytes, 8.0 * tensor.nbytes),)


def batch_labels(layers: Sequence[str], payload: Payload) -> tuple[Label, ...]:
    """The labels of a payload for several layers: `layers` names the layer of each part."""
    return tuple(map(Label, layers, payload.kinds, payload.part_bytes(), payload.model_bits))


def payload_labels(layer: str, payload: Payload) -> tuple[Label, ...]:
    """The labels of a payload's parts."""
    return tuple([Label(layer, kind, part.nbytes, bits) for kind, part, bits in payload.labeled_parts()])


def types_of(payload: Payload) -> tuple[torch.dtype, ...]:
    """The types of a payload's parts."""
    return payload.dtypes


@lru_cache  # called with the same types at every step
def type_names(dtypes: tuple[torch.dtype, ...]) -> str:
    """Names of types without "torch."."""
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _some_names(names: list[str], max_names: int = 4) -> str:
    """The first few names; a checksum stands for the others, so that two long lists that differ give other texts."""
    if len(names) <= max_names:
        return ", ".join(names)
    return f"{', '.join(names[:max_names])}, ... ({len(names)} layers, {zlib.crc32(repr(names).encode()):08x})"
