"""Natural compression (Horváth et al., 2019): send sign and exponent, rounded stochastically to a power of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    BITS,
    Capabilities,
    Capability,
    CompositionError,
    Contract,
    EncodedBatch,
    Key,
    LayerBatch,
    Part,
    Payload,
    TensorSpec,
    cast_saturating,
)
from ..kernels import (
    CodeForm,
    Coding,
    exponents_feedback,
    exponents_mean,
    natural_decode_signed,
    natural_encode,
    natural_encode_signed,
    natural_feedback,
    natural_mean,
)
from ..wire import expect_parts, expect_vector
from .coded import decode_mean_layers, encode_layers
from .exponents import (
    LARGEST,
    decode_exponents,
    encode_exponents,
    expect_planes,
    exponent_labels,
    exponent_payload,
    exponents_num_bytes,
)
from .residual import encode_and_subtract

_TOP = 16  # largest exponent with bits=8: seven bits hold the exponent: 2^-110 ... 2^16 and zero
_POWERS, _EXPONENTS = CodeForm(Coding.POWERS, limit=_TOP), CodeForm(Coding.EXPONENTS, limit=LARGEST)


@dataclass(frozen=True)
class Natural:
    """Send sign and exponent of x, stochastically rounded to a power of two: 9·d bits. Unbiased, omega = 1/8.

    Works on the bits of float32: noise is added to the mantissa, and a carry into the exponent rounds up. With 9 bits,
    values below 2^-126 become 0 or 2^-126 and those above 2^127 become 2^127; with bits=8, values below 2^-110 become 0
    and those above 2^16 become 2^16. The bound on the variance holds in between.

    Args:
        bits: bits per coordinate, 9 (the range of float32) or 8 (2^-110 to 2^16).
    """

    tunable = BITS
    capabilities: ClassVar[Capabilities] = frozenset(
        {
            Capability.SENDS_EVERY_COORDINATE,
            Capability.EXPECTS_BYTES,
            Capability.FUSES_RESIDUAL,
            Capability.DECODES_MEAN,
            Capability.BATCHES_LAYERS,
        }
    )

    bits: int = 9

    def __post_init__(self) -> None:
        if self.bits not in (8, 9):
            raise CompositionError(f"Natural: bits must be 8 or 9, got {self.bits}; 9 keeps the whole range of float32")

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        flat = cast_saturating(tensor.flatten().contiguous(), torch.float32)
        if self.bits == 9:
            return encode_exponents(natural_encode(flat, key, 0, LARGEST), flat)
        return self._payload(natural_encode_signed(flat, key, _TOP))

    def encode_with_residual(self, tensor: Tensor, residual: Tensor, key: Key) -> tuple[Payload, Tensor]:
        if tensor.dtype != torch.float32:
            return encode_and_subtract(self, tensor, residual, key)
        flat, old_residual = tensor.flatten(), residual.flatten()
        if self.bits == 9:
            exponents, signs, new_residual = exponents_feedback(flat, old_residual, key, LARGEST)
            return exponent_payload(exponents, signs), new_residual.view(tensor.shape)
        codes, new_residual = natural_feedback(flat, old_residual, key, _TOP)
        return self._payload(codes), new_residual.view(tensor.shape)

    def encode_many(self, batch: LayerBatch, keys: Sequence[Key]) -> EncodedBatch:
        return encode_layers(self, batch, keys)

    @property
    def code_form(self) -> CodeForm:
        """How a layer is coded."""
        return _EXPONENTS if self.bits == 9 else _POWERS

    def part_labels(self, numel: int) -> tuple[tuple[str, float], ...]:
        """Kind and model bits of each part."""
        return exponent_labels(numel) if self.bits == 9 else (("codes", 8.0 * numel),)

    def _payload(self, codes: Tensor) -> Payload:
        return Payload.of([Part("codes", codes, 8.0 * codes.numel())])

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        del key
        if self.bits == 9:
            return decode_exponents(payload, spec, "Natural")
        return cast_saturating(natural_decode_signed(self._codes(payload, spec), _TOP), spec.dtype).view(spec.shape)

    def decode_mean(
        self, payloads: Sequence[Payload], spec: TensorSpec, keys: Sequence[Key], out: Tensor | None = None
    ) -> Tensor:
        del keys
        if self.bits == 9:
            planes = [expect_planes(payload, spec, "Natural") for payload in payloads]
            return exponents_mean(out, [part for part, _ in planes], [part for _, part in planes]).view(spec.shape)
        return natural_mean(out, [self._codes(payload, spec) for payload in payloads], _TOP).view(spec.shape)

    def decode_mean_many(
        self,
        payloads: Sequence[Payload],
        specs: Sequence[TensorSpec],
        keys: Sequence[Sequence[Key]],
        outs: Sequence[Tensor],
    ) -> None:
        decode_mean_layers(self, payloads, specs, keys, outs)

    def _codes(self, payload: Payload, spec: TensorSpec) -> Tensor:
        (part,) = expect_parts(payload, 1, "Natural")
        return expect_vector(part, torch.uint8, spec.numel, "Natural")

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract(omega=1 / 8)

    def num_bytes(self, spec: TensorSpec) -> float:
        return exponents_num_bytes(spec) if self.bits == 9 else spec.numel
