"""All-reduce of payloads: linear compressors only; 2 s (n − 1)/n bytes per rank for a payload of s bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from ..core import (
    AllReduce,
    Capabilities,
    Capability,
    Compressor,
    Context,
    IncompatibleParts,
    Key,
    Label,
    Payload,
    Program,
    Reduced,
    SendForm,
    TensorSpec,
    all_reduce_bytes,
    fuse,
    inherit_capabilities,
    is_additive,
    payload_labels,
)

_ALWAYS = frozenset({Capability.LOSSLESS, Capability.WRAPS_COMPRESSOR, Capability.SENDS_ONE_PAYLOAD})


@dataclass(frozen=True)
class SumMean:
    """Add payloads by all-reduce and decode the sum: linear compressors only; bytes do not grow with n.

    Args:
        compressor: one with additive payloads, such as randomk(density=0.01).
    """

    compressor: Compressor

    def __post_init__(self) -> None:
        if not is_additive(self.compressor):
            name = type(self.compressor).__name__
            raise IncompatibleParts(
                f"SumMean adds payloads on the wire; {name}'s payloads cannot be added. Use GatherMean({name}(...))"
            )

    @cached_property
    def capabilities(self) -> Capabilities:
        return _ALWAYS | inherit_capabilities(self.compressor, Capability.EXPECTS_BYTES)

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        key = ctx.key(spec.name)
        own = self.compressor.encode(tensor, key)
        labels = payload_labels(spec.name, own)
        sums = [_all_reduce(part / ctx.world.size, label) for part, label in zip(own.parts, labels, strict=True)]
        mean = Payload(tuple((yield from fuse(sums))))
        return Reduced(self.compressor.decode(mean, spec, key), self.compressor.decode(own, spec, key), state)

    def expected_bytes(self, spec: TensorSpec, size: int) -> float:
        return all_reduce_bytes(self.compressor.num_bytes(spec), size)

    def send_form(self) -> SendForm:
        return SendForm.single(self.compressor)


def _all_reduce(share: Tensor, label: Label) -> Program[Tensor]:
    return (yield AllReduce(share, labels=(label,)))  # type: ignore[no-any-return]
