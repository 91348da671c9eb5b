"""Base of block-wise quantizers: a code of `bits` bits for every value and one magnitude for every block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from ..core import Contract, EncodedBatch, Key, LayerBatch, Payload, TensorSpec, cast_saturating
from ..kernels import CodeForm
from ..wire import expect_magnitudes, expect_packed, expect_parts, packed_bytes
from .blocks import count_blocks, estimate_errors_by_blocks
from .coded import decode_mean_layers, encode_layers


class BlockQuantizer:
    """Payload and sizes of b·d + 32·d/block bits. A subclass encodes, and decodes flat codes and magnitudes."""

    bits: int
    block: int
    magnitudes: ClassVar[str]  # name of that part of the payload

    @property
    def levels(self) -> int:
        """Number of levels above zero; as many are below."""
        return (1 << (self.bits - 1)) - 1

    @property
    def code_form(self) -> CodeForm:
        """How a layer is coded."""
        raise NotImplementedError

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        """See `Compressor`."""
        raise NotImplementedError

    def contract(self, spec: TensorSpec) -> Contract:
        """See `Compressor`."""
        raise NotImplementedError

    def encode_with_residual(self, tensor: Tensor, residual: Tensor, key: Key) -> tuple[Payload, Tensor]:
        """Encode the sum, and return the next residual."""
        raise NotImplementedError

    def decode_flat(self, packed: Tensor, magnitudes: Tensor, count: int) -> Tensor:
        """Decode `count` values to float32."""
        raise NotImplementedError

    def mean_flat(
        self, out: Tensor | None, packed: Sequence[Tensor], magnitudes: Sequence[Tensor], count: int
    ) -> Tensor:
        """Decode and average several payloads in one pass, into `out` if it is given."""
        raise NotImplementedError

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        del key
        return cast_saturating(self.decode_flat(*self._parts(payload, spec), spec.numel), spec.dtype).view(spec.shape)

    def decode_mean(
        self, payloads: Sequence[Payload], spec: TensorSpec, keys: Sequence[Key], out: Tensor | None = None
    ) -> Tensor:
        del keys
        parts = [self._parts(payload, spec) for payload in payloads]
        packed, magnitudes = [part for part, _ in parts], [part for _, part in parts]
        return self.mean_flat(out, packed, magnitudes, spec.numel).view(spec.shape)

    def encode_many(self, batch: LayerBatch, keys: Sequence[Key]) -> EncodedBatch:
        return encode_layers(self, batch, keys)

    def decode_mean_many(
        self,
        payloads: Sequence[Payload],
        specs: Sequence[TensorSpec],
        keys: Sequence[Sequence[Key]],
        outs: Sequence[Tensor],
    ) -> None:
        decode_mean_layers(self, payloads, specs, keys, outs)

    def num_bytes(self, spec: TensorSpec) -> float:
        return packed_bytes(spec.numel, self.bits) + 4 * count_blocks(spec.numel, self.block)

    def estimate_errors(
        self, tensor: Tensor, spec: TensorSpec, options: Sequence[Any], key: Key, exact: bool
    ) -> Sequence[float | None]:
        """Estimate errors of options of this kind and block length from a sample of blocks, unless `exact` is set."""
        own = [option if isinstance(option, type(self)) and option.block == self.block else None for option in options]
        return estimate_errors_by_blocks(tensor, self.block, own, key, exact)

    def _payload(self, packed: Tensor, magnitudes: Tensor, numel: int) -> Payload:
        return Payload((packed, magnitudes), *zip(*self.part_labels(numel), strict=True))

    def part_labels(self, numel: int) -> tuple[tuple[str, float], ...]:
        """Kind and model bits of each part."""
        blocks = count_blocks(numel, self.block)
        return ("levels", float(self.bits * numel)), (self.magnitudes, 32.0 * blocks)

    def _parts(self, payload: Payload, spec: TensorSpec) -> tuple[Tensor, Tensor]:
        name = type(self).__name__
        packed, magnitudes = expect_parts(payload, 2, name)
        count = count_blocks(spec.numel, self.block)
        magnitudes = expect_magnitudes(magnitudes, count, f"{name} {self.magnitudes}")
        return expect_packed(packed, spec.numel, self.bits), magnitudes
