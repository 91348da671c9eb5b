"""The protocols that parts keep. Wrappers have the type of what they wrap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

from torch import Tensor

from .capabilities import Capability, has
from .context import Context, Key
from .requests import Program
from .tensors import Payload, TensorSpec, narrow, saturate

S = TypeVar("S")
T = TypeVar("T")
Writes: TypeAlias = Callable[[Tensor | None], Tensor]


class Contract(NamedTuple):
    """What a compressor promises for tensors of one form; None where it promises nothing.

    delta: E|x - C(x)|^2 <= (1 - delta) |x|^2.    omega: unbiased, with E|x - C(x)|^2 <= omega |x|^2.
    """

    delta: float | None = None
    omega: float | None = None


@runtime_checkable
class Compressor(Protocol):
    """A lossy map: settings, never memory. Finite in, finite out; zero in, zero out."""

    def encode(self, tensor: Tensor, key: Key) -> Payload: ...

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        """The tensor, in spec's type. What no encoder could have written is a DecodeError before it costs memory."""
        ...

    def contract(self, spec: TensorSpec) -> Contract: ...

    def nbytes(self, spec: TensorSpec) -> float:
        """Expected payload size, for plans and dry simulation."""
        ...


class CoordinateSelector(Compressor, Protocol):
    """A compressor that sends some coordinates and not others, in two steps that can be taken apart.

    Memories choose by one tensor and send another (SCAM); two-hop exchanges cut what was chosen by owners. So what is
    taken is settled over the whole tensor, before it is cut: operators may weigh it.
    """

    def select(self, scores: Tensor, key: Key) -> Tensor:
        """Positions to send, ascending, for a flat tensor."""
        ...

    def take(self, flat: Tensor, positions: Tensor) -> Tensor:
        """What is sent from there: the numbers of a flat tensor, or what the operator makes of them."""
        ...

    def encode_at(self, kept: Tensor, positions: Tensor, numel: int, key: Key) -> Payload:
        """What was taken, with its positions in a flat tensor of so many elements."""
        ...

    def decode_at(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        """What `encode_at` wrote, however many positions it was given."""
        ...

    def for_shard(self, num_shards: int) -> Compressor:
        """This operator for one of so many equal pieces of a tensor."""
        ...


class CountsCoordinates(Compressor, Protocol):
    """A compressor that knows how many coordinates it sends."""

    def count(self, numel: int) -> int:
        """How many of a tensor's coordinates, always or on average."""
        ...


class CodesPositions(CoordinateSelector, Protocol):
    """A compressor whose payload is the positions it chose, coded, and the payload of `values` for what is there."""

    @property
    def values(self) -> Compressor: ...

    def bounds(self, numel: int) -> tuple[int, int]:
        """How few and how many of a tensor's coordinates are sent."""
        ...


class AcceptsImportance(Compressor, Protocol):
    """A compressor that is told how much each coordinate is worth. Settings again, not memory: w is given to it."""

    def with_importance(self, importance: Tensor) -> Compressor:
        """The same operator with w >= 0, one number a coordinate. Never given one, it takes all for equal: w = 1."""
        ...


class FusedResidualEncoder(Compressor, Protocol):
    """A compressor that can add a residual and work out the next one with fewer passes over the tensor."""

    def encode_with_residual(self, tensor: Tensor, residual: Tensor, key: Key) -> tuple[Payload, Tensor]:
        """encode(saturate(tensor + residual)), and that less what is decoded from it, saturated: the very same bits.

        Both are of one type, which is float32 or wider.
        """
        ...


class DecodesMean(Compressor, Protocol):
    """A compressor that can average payloads with fewer passes over the tensor than to decode each and add."""

    def decode_mean(
        self, payloads: Sequence[Payload], spec: TensorSpec, keys: Sequence[Key], out: Tensor | None = None
    ) -> Tensor:
        """Sum of decode(payload) * (1/n) in this order, for a spec of float32: the same bits. In `out` if possible."""
        ...


class Reduced(Generic[S]):
    """What an aggregator gives back to one rank.

    value: this rank's view of the average. sent: what this rank contributed to it, so that over ranks mean(sent) ==
    mean(value). Both may be given as functions, because not everybody asks and they can cost passes over the tensor;
    that of the value may write to the memory it is given, if any. state: its new memory, pending until all ranks agree
    that the step was good. heard: its new memory if its own tensor was bad and only its partners went on without it;
    None is the old one, right for all that remember only themselves.
    """

    def __init__(
        self, value: Tensor | Writes, sent: Tensor | Callable[[], Tensor], state: S, heard: S | None = None
    ) -> None:
        self.state, self.heard = state, heard
        self._value, self._sent = value, sent

    @property
    def value(self) -> Tensor:
        if not isinstance(self._value, Tensor):
            self._value = self._value(None)
        return self._value

    def write_value(self, out: Tensor) -> None:
        """The value into `out`, in its type; without a detour where the aggregator knows how."""
        value = self._value if isinstance(self._value, Tensor) else self._value(out)
        if value.data_ptr() != out.data_ptr():
            out.copy_(narrow(value, out.dtype))

    @property
    def sent(self) -> Tensor:
        if not isinstance(self._sent, Tensor):
            self._sent = self._sent()
        return self._sent

    def with_state(self, state: T, heard: T | None = None) -> Reduced[T]:
        """The same from a part around this one."""
        return Reduced(self._value, lambda: self.sent, state, heard)


@runtime_checkable
class Aggregator(Protocol[S]):
    """Local tensors in spec's type -> each rank's view of their average. Memory is returned, never hidden."""

    def init(self, spec: TensorSpec, key: Key) -> S: ...

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: S, ctx: Context) -> Program[Reduced[S]]: ...


class WrapsCompressor(Protocol):
    """An aggregator that encodes what a rank sends by a compressor, a field that `dataclasses.replace` may change."""

    @property
    def compressor(self) -> Compressor: ...


class FusedResidualAggregator(Protocol[S]):
    """An aggregator that can add a residual and work out the next one with fewer passes over the tensor."""

    def reduce_with_residual(
        self, tensor: Tensor, residual: Tensor, spec: TensorSpec, state: S, ctx: Context
    ) -> Program[tuple[Reduced[S], Tensor]]:
        """reduce(tensor + residual), and what of that was not sent: as error feedback would, up to rounding."""
        ...


def reduce_and_subtract(
    inner: Aggregator[S], tensor: Tensor, residual: Tensor, spec: TensorSpec, state: S, ctx: Context
) -> Program[tuple[Reduced[S], Tensor]]:
    """What FusedResidualAggregator promises, in as many passes as it takes: its definition."""
    target = saturate(tensor + residual)
    out = yield from inner.reduce(narrow(target, spec.dtype), spec, state, ctx)
    return out, saturate(target - out.sent)


def reduce_with_residual(
    inner: Aggregator[S], tensor: Tensor, residual: Tensor, spec: TensorSpec, state: S, ctx: Context
) -> Program[tuple[Reduced[S], Tensor]]:
    """What FusedResidualAggregator promises, for any aggregator: its own way if it has one."""
    if reduces_with_residual(inner) and tensor.dtype == residual.dtype:
        return (yield from inner.reduce_with_residual(tensor, residual, spec, state, ctx))
    return (yield from reduce_and_subtract(inner, tensor, residual, spec, state, ctx))


def is_additive(part: Compressor) -> bool:
    return has(part, Capability.ADDITIVE)


def selects_coordinates(part: Any) -> TypeGuard[CoordinateSelector]:
    return has(part, Capability.SELECTS_COORDINATES)


def counts_coordinates(part: Compressor) -> TypeGuard[CountsCoordinates]:
    return has(part, Capability.COUNTS_COORDINATES)


def codes_positions(part: Compressor) -> TypeGuard[CodesPositions]:
    return has(part, Capability.CODES_POSITIONS)


def takes_importance(part: Any) -> TypeGuard[AcceptsImportance]:
    return has(part, Capability.TAKES_IMPORTANCE)


def encodes_with_residual(part: Compressor) -> TypeGuard[FusedResidualEncoder]:
    return has(part, Capability.FUSES_RESIDUAL)


def decodes_mean(part: Compressor) -> TypeGuard[DecodesMean]:
    return has(part, Capability.DECODES_MEAN)


def wraps_compressor(part: Any) -> TypeGuard[WrapsCompressor]:
    return has(part, Capability.WRAPS_COMPRESSOR)


def reduces_with_residual(part: Aggregator[S]) -> TypeGuard[FusedResidualAggregator[S]]:
    return has(part, Capability.FUSES_RESIDUAL)
