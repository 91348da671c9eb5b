"""Quantizers for all layers of a batch: one call of C, or each layer by itself, which is the definition."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from torch import Tensor

from ..core import Compressor, EncodedBatch, Key, LayerBatch, Payload, TensorSpec, all_finite
from ..kernels import CodeForm, encode_codes_many, mean_codes_many


class CodedCompressor(Compressor, Protocol):
    """A quantizer with codes that `encode_codes_many` knows. It has the fused forms for one layer, too."""

    @property
    def code_form(self) -> CodeForm:
        """How it codes a layer."""
        ...

    def part_labels(self, numel: int) -> tuple[tuple[str, float], ...]:
        """Kind and model bits of each part of a layer of this size."""
        ...

    def encode_with_residual(self, tensor: Tensor, residual: Tensor, key: Key) -> tuple[Payload, Tensor]:
        """Encode the sum, and return the next residual."""
        ...

    def decode_mean(
        self, payloads: Sequence[Payload], spec: TensorSpec, keys: Sequence[Key], out: Tensor | None = None
    ) -> Tensor:
        """The mean of all ranks' payloads, in the memory of `out` if it can be."""
        ...


def encode_layers(compressor: CodedCompressor, batch: LayerBatch, keys: Sequence[Key]) -> EncodedBatch:
    """`encode_many` of a quantizer."""
    coded = encode_codes_many(compressor.code_form, batch.tensors, batch.residuals, keys)
    if coded is None:
        return encode_each(compressor, batch, keys)
    numels = tuple([spec.numel for spec in batch.specs])
    labels = _label_parts(compressor, numels)  # type: ignore[arg-type]  # settings, which are hashable
    return EncodedBatch(coded.payload.labeled(*labels), coded.rests, coded.first_bad)


def encode_each(compressor: CodedCompressor, batch: LayerBatch, keys: Sequence[Key]) -> EncodedBatch:
    """`encode`, or `encode_with_residual`, of one layer after another."""
    first_bad = next((i for i, tensor in enumerate(batch.tensors) if not all_finite(tensor)), -1)
    if first_bad >= 0:
        return EncodedBatch(Payload(()), None, first_bad)
    if batch.residuals is None:
        payloads, rests = [compressor.encode(*pair) for pair in zip(batch.tensors, keys, strict=True)], None
    else:
        rows = zip(batch.tensors, batch.residuals, keys, strict=True)
        pairs = [compressor.encode_with_residual(*row) for row in rows]
        payloads, rests = [payload for payload, _ in pairs], [rest for _, rest in pairs]
    parts = [part for payload in payloads for part in payload.labeled_parts()]
    return EncodedBatch(Payload.of(parts), rests, -1)


def decode_mean_layers(
    compressor: CodedCompressor,
    payloads: Sequence[Payload],
    specs: Sequence[TensorSpec],
    keys: Sequence[Sequence[Key]],
    outs: Sequence[Tensor],
) -> None:
    """`decode_mean_many` of a quantizer.

    Raises:
        DecodeError: a payload is damaged.
    """
    if mean_codes_many(compressor.code_form, payloads, outs):
        return
    counts = [len(compressor.code_form.dtypes)] * len(specs)
    of_layers = zip(*[payload.cut(counts) for payload in payloads], strict=True)
    for i, (of_layer, spec, out) in enumerate(zip(of_layers, specs, outs, strict=True)):
        mean = compressor.decode_mean(of_layer, spec, [of_rank[i] for of_rank in keys], out)
        if mean.data_ptr() != out.data_ptr():
            out.copy_(mean)


@lru_cache(maxsize=256)  # the same for a bucket at every step
def _label_parts(compressor: CodedCompressor, numels: tuple[int, ...]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Kinds and model bits of all parts of a batch."""
    kinds, bits = zip(*[label for numel in numels for label in compressor.part_labels(numel)], strict=True)
    return kinds, bits
