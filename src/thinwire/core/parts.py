"""Protocols of compressors and aggregators, and of their optional capabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

from torch import Tensor

from .capabilities import Capability, has
from .context import Context, Key
from .payloads import Payload
from .requests import Program
from .tensors import TensorSpec, cast_saturating, saturate

S = TypeVar("S")
T = TypeVar("T")
Writes: TypeAlias = Callable[[Tensor | None], Tensor]


class Contract(NamedTuple):
    """Error bounds of a compressor for tensors of one shape and type; None where there is no bound.

    delta: contractive, E|x - C(x)|^2 <= (1 - delta) |x|^2. omega: unbiased, with E|x - C(x)|^2 <= omega |x|^2.
    """

    delta: float | None = None
    omega: float | None = None


@runtime_checkable
class Compressor(Protocol):
    """A lossy map from a tensor to a payload. It has settings and no state.

    Finite tensors decode to finite tensors, and zeros to zeros.
    """

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        """The payload of a tensor; `key` makes its random bits."""
        ...

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        """The tensor of a payload, in spec's type.

        Raises:
            DecodeError: no encoder could have written this payload. Raised before memory is allocated for it.
        """
        ...

    def contract(self, spec: TensorSpec) -> Contract:
        """Error bounds for tensors like this."""
        ...

    def num_bytes(self, spec: TensorSpec) -> float:
        """Expected size of a payload in bytes, for plans and simulations."""
        ...


class CoordinateSelector(Compressor, Protocol):
    """A compressor that sends a subset of the coordinates, with selection and encoding as separate methods.

    Memories may select by one tensor and send another (SCAM); two-hop aggregators cut the selected coordinates into
    shards. So values are taken from the whole tensor before it is cut: a compressor may scale them.
    """

    def select(self, scores: Tensor, key: Key) -> Tensor:
        """Positions to send, ascending, of a flat tensor."""
        ...

    def take(self, flat: Tensor, positions: Tensor) -> Tensor:
        """The values to send for these positions of a flat tensor, scaled if the compressor scales."""
        ...

    def encode_at(self, kept: Tensor, positions: Tensor, numel: int, key: Key) -> Payload:
        """The payload of values at positions of a flat tensor of `numel` elements."""
        ...

    def decode_at(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        """Decode what `encode_at` wrote, with any number of positions."""
        ...

    def for_shard(self, num_shards: int) -> Compressor:
        """The compressor for one of `num_shards` equal shards of a tensor."""
        ...


class CountsCoordinates(Compressor, Protocol):
    """A compressor with a known number of coordinates to send."""

    def count(self, numel: int) -> int:
        """The number of coordinates sent of `numel`, always or on average."""
        ...


class CodesPositions(CoordinateSelector, Protocol):
    """A compressor with payloads of the coded positions, then the payload of `values` for the numbers at them."""

    @property
    def values(self) -> Compressor: ...

    def bounds(self, numel: int) -> tuple[int, int]:
        """The smallest and the largest number of coordinates that are sent of `numel`."""
        ...


class AcceptsImportance(Compressor, Protocol):
    """A compressor with an importance w for each coordinate, which is a setting and no state."""

    def with_importance(self, importance: Tensor) -> Compressor:
        """The same compressor with this w >= 0, one number per coordinate. Without one, w = 1."""
        ...


class FusedResidualEncoder(Compressor, Protocol):
    """A compressor that adds a residual and computes the next one in fewer passes over the tensor."""

    def encode_with_residual(self, tensor: Tensor, residual: Tensor, key: Key) -> tuple[Payload, Tensor]:
        """The payload of target = saturate(tensor + residual), and saturate(target - its decoded payload).

        The same bits as by separate calls. Both tensors have one type, float32 or wider.
        """
        ...


class DecodesMean(Compressor, Protocol):
    """A compressor that averages payloads in fewer passes over the tensor than decoding each and adding."""

    def decode_mean(
        self, payloads: Sequence[Payload], spec: TensorSpec, keys: Sequence[Key], out: Tensor | None = None
    ) -> Tensor:
        """The sum of decode(payload) * (1/n) in this order, the same bits, for float32; in `out` if possible."""
        ...


class Reduced(Generic[S]):
    """The result of an aggregator on one rank.

    Args:
        value: this rank's view of the average; or a function that computes it and may write it to its argument.
        sent: this rank's contribution to the average, so that over ranks mean(sent) == mean(value); or a function that
            computes it, because not every caller needs it and it can cost passes over the tensor.
        state: the new state, pending until all ranks agree that the step was good.
        state_if_excluded: the state to commit if this rank was excluded from the round (non-finite input) while its
            neighbors completed it; None keeps the old state.
    """

    def __init__(
        self, value: Tensor | Writes, sent: Tensor | Callable[[], Tensor], state: S, state_if_excluded: S | None = None
    ) -> None:
        self.state, self.state_if_excluded = state, state_if_excluded
        self._value, self._sent = value, sent

    @property
    def value(self) -> Tensor:
        """This rank's view of the average."""
        if not isinstance(self._value, Tensor):
            self._value = self._value(None)
        return self._value

    def write_value(self, out: Tensor) -> None:
        """Write the value to `out`, in its type; directly where the aggregator supports it."""
        value = self._value if isinstance(self._value, Tensor) else self._value(out)
        if value.data_ptr() != out.data_ptr():
            out.copy_(cast_saturating(value, out.dtype))

    @property
    def sent(self) -> Tensor:
        """This rank's contribution to the average."""
        if not isinstance(self._sent, Tensor):
            self._sent = self._sent()
        return self._sent

    def with_state(self, state: T, state_if_excluded: T | None = None) -> Reduced[T]:
        """The same result with the state of a wrapper."""
        return Reduced(self._value, lambda: self.sent, state, state_if_excluded)


@runtime_checkable
class Aggregator(Protocol[S]):
    """How the ranks' tensors become each rank's average. State is passed in and returned, never hidden."""

    def init(self, spec: TensorSpec, key: Key) -> S:
        """The state of a layer before its first step."""
        ...

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: S, ctx: Context) -> Program[Reduced[S]]:
        """The program that averages a tensor of spec's type over all ranks."""
        ...


class WrapsCompressor(Protocol):
    """An aggregator with a field `compressor`, which encodes what a rank sends and may be replaced."""

    @property
    def compressor(self) -> Compressor: ...


class FusedResidualAggregator(Protocol[S]):
    """An aggregator that adds a residual and computes the next one in fewer passes over the tensor."""

    def reduce_with_residual(
        self, tensor: Tensor, residual: Tensor, spec: TensorSpec, state: S, ctx: Context
    ) -> Program[tuple[Reduced[S], Tensor]]:
        """reduce(tensor + residual), and the part of that which was not sent: error feedback, up to rounding."""
        ...


def reduce_and_subtract(
    inner: Aggregator[S], tensor: Tensor, residual: Tensor, spec: TensorSpec, state: S, ctx: Context
) -> Program[tuple[Reduced[S], Tensor]]:
    """The reference of `FusedResidualAggregator.reduce_with_residual`: add, reduce, subtract what was sent."""
    target = saturate(tensor + residual)
    out = yield from inner.reduce(cast_saturating(target, spec.dtype), spec, state, ctx)
    return out, saturate(target - out.sent)


def reduce_with_residual(
    inner: Aggregator[S], tensor: Tensor, residual: Tensor, spec: TensorSpec, state: S, ctx: Context
) -> Program[tuple[Reduced[S], Tensor]]:
    """`reduce_with_residual` of the aggregator if it has one, else the reference."""
    if reduces_with_residual(inner) and tensor.dtype == residual.dtype:
        return (yield from inner.reduce_with_residual(tensor, residual, spec, state, ctx))
    return (yield from reduce_and_subtract(inner, tensor, residual, spec, state, ctx))


def is_additive(part: Compressor) -> bool:
    """Whether payloads may be summed on the wire."""
    return has(part, Capability.ADDITIVE)


def selects_coordinates(part: Any) -> TypeGuard[CoordinateSelector]:
    """Whether a part is a CoordinateSelector."""
    return has(part, Capability.SELECTS_COORDINATES)


def counts_coordinates(part: Compressor) -> TypeGuard[CountsCoordinates]:
    """Whether a compressor has `count`."""
    return has(part, Capability.COUNTS_COORDINATES)


def codes_positions(part: Compressor) -> TypeGuard[CodesPositions]:
    """Whether payloads are coded positions and values."""
    return has(part, Capability.CODES_POSITIONS)


def takes_importance(part: Any) -> TypeGuard[AcceptsImportance]:
    """Whether a part has `with_importance`."""
    return has(part, Capability.TAKES_IMPORTANCE)


def encodes_with_residual(part: Compressor) -> TypeGuard[FusedResidualEncoder]:
    """Whether a compressor has `encode_with_residual`."""
    return has(part, Capability.FUSES_RESIDUAL)


def decodes_mean(part: Compressor) -> TypeGuard[DecodesMean]:
    """Whether a compressor has `decode_mean`."""
    return has(part, Capability.DECODES_MEAN)


def wraps_compressor(part: Any) -> TypeGuard[WrapsCompressor]:
    """Whether an aggregator has a `compressor` that may be replaced."""
    return has(part, Capability.WRAPS_COMPRESSOR)


def reduces_with_residual(part: Aggregator[S]) -> TypeGuard[FusedResidualAggregator[S]]:
    """Whether an aggregator has `reduce_with_residual`."""
    return has(part, Capability.FUSES_RESIDUAL)
