"""m and v of one layer as one tensor, (2, *shape), and the compressor that knows which is which."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..compressors.sparse import values_key, values_spec
from ..core import (
    Capabilities,
    Capability,
    CodesPositions,
    Compressor,
    Contract,
    DecodeError,
    IncompatibleParts,
    Key,
    Part,
    Payload,
    TensorSpec,
    cast_saturating,
    codes_positions,
    counts_coordinates,
    has,
    inherit_capabilities,
    saturate,
)
from ..kernels import scatter
from ..wire import decode_indices, expect_vector
from .transforms import compute_block_means, expand_block_means, restore_v, transform_v

_MEANS = torch.bfloat16  # a relative error of 1/500 is enough for the mean of hundreds of numbers


def check_unscaled(compressor: Compressor) -> None:
    """Raise for a compressor that scales what it keeps: v would be too large until it has decayed."""
    if has(compressor, Capability.SCALES_KEPT):
        name = type(compressor).__name__
        raise IncompatibleParts(
            f"moments: {name} scales what it sends to be unbiased; v would be far too large for many steps. Use it "
            "unscaled where it has the setting (randomk, projection: scaled=false), or topk(density=0.01)"
        )


def row_spec(spec: TensorSpec) -> TensorSpec:
    """Return the spec of m, and of v, in a pair."""
    return TensorSpec(spec.name, spec.shape[1:], spec.dtype, spec.device)


@dataclass(frozen=True)
class PairSettings:
    """Settings of pairs. transmit, mask, block: see `MomentsConfig`."""

    compressor: Compressor
    transmit: str = "sqrt"
    mask: bool = True
    block: int = 1024

    def __post_init__(self) -> None:
        check_unscaled(self.compressor)


@dataclass(frozen=True)
class PairCompressor(PairSettings):
    """Compress m and √v by the same compressor; with `mask` at the coordinates of m, which are sent once.

    With `mask`, the mean of each block of v that decodes to zero is sent, 16 bits per block. It has no contract; what
    it guarantees is that v is not zero where it was not.
    """

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        wide = tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)
        m, v = tensor[0], wide[1]
        spec = TensorSpec.of("", m)
        u = cast_saturating(transform_v(v, self.transmit), tensor.dtype)
        of_m, of_u = self._encode(m, u, key)
        parts = [*of_m.labeled_parts(), *of_u.labeled_parts()]
        if self.mask:
            decoded = self._decode_u(of_m.parts, of_u.parts, spec, key)
            signed = v.numel() > 0 and bool(v.amin() < 0)
            means = compute_block_means(v, _find_lost(decoded, signed), self.block)
            short = cast_saturating(saturate(transform_v(means, self.transmit)), _MEANS)
            parts.append(Part("means", short, 16.0 * short.numel()))
            parts.append(Part("means", torch.tensor([signed], dtype=torch.uint8, device=tensor.device), 1.0))
        return Payload.of(parts)

    @cached_property
    def capabilities(self) -> Capabilities:
        return inherit_capabilities(self.compressor, Capability.EXPECTS_BYTES, Capability.VARIABLE_SIZE)

    @property
    def _sparse(self) -> CodesPositions | None:
        """The compressor, if v is sent at the positions that it selected for m."""
        return self.compressor if self.mask and codes_positions(self.compressor) else None

    def _encode(self, m: Tensor, u: Tensor, key: Key) -> tuple[Payload, Payload]:
        sparse = self._sparse
        if sparse is None:
            # one key for both, so that random choices are the same
            return self.compressor.encode(m, key), self.compressor.encode(u, key)
        flat = m.flatten()
        positions = sparse.select(flat, key)
        of_m = sparse.encode_at(sparse.take(flat, positions), positions, flat.numel(), key)
        return of_m, sparse.values.encode(u.flatten()[positions], values_key(key))

    def _decode_u(self, of_m: tuple[Tensor, ...], of_u: tuple[Tensor, ...], spec: TensorSpec, key: Key) -> Tensor:
        sparse = self._sparse
        if sparse is None:
            return self.compressor.decode(Payload(of_u), spec, key)
        positions = decode_indices(of_m[0], spec.numel, sparse.bounds(spec.numel)[1])
        form = values_spec(spec, positions.numel())
        kept = sparse.values.decode(Payload(of_u), form, values_key(key))
        return scatter(kept, positions, spec.numel).view(spec.shape)

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        row = row_spec(spec)
        of_m, of_u, rest = self._split(payload.parts)
        m = self.compressor.decode(Payload(of_m), row, key)
        u = self._decode_u(of_m, of_u, row, key).to(spec.work_dtype)
        if rest:
            u = self._fill_lost(u, rest, row)
        v = restore_v(u, self.transmit)
        return cast_saturating(saturate(torch.stack([m.to(v.dtype), v])), spec.dtype)

    def _split(self, parts: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Split into the parts of m, of v, and the block means."""
        end, first = len(parts) - 2 * self.mask, int(self._sparse is not None)
        half, odd = divmod(end - first, 2)
        if half < 1 or odd:
            raise DecodeError(f"PairCompressor: expected parts of m, of v and of block means, got {len(parts)} parts")
        return parts[: first + half], parts[first + half : end], parts[end:]

    def _fill_lost(self, u: Tensor, rest: tuple[Tensor, ...], row: TensorSpec) -> Tensor:
        means = expect_vector(rest[0], _MEANS, -(-row.numel // self.block), "PairCompressor means")
        signed = expect_vector(rest[1], torch.uint8, 1, "PairCompressor sign")
        fill = expand_block_means(means.to(u.dtype), row.numel, self.block).view(u.shape)
        return torch.where(_find_lost(u, bool(signed)), fill, u)

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract()

    def num_bytes(self, spec: TensorSpec) -> float:
        row = row_spec(spec)
        means = 2 * -(-row.numel // self.block) + 1 if self.mask else 0
        own, sparse = self.compressor.num_bytes(row), self._sparse
        if sparse is None or not counts_coordinates(self.compressor):
            return 2 * own + means
        kept = values_spec(row, self.compressor.count(row.numel))
        return own + sparse.values.num_bytes(kept) + means


def _find_lost(u: Tensor, signed: bool) -> Tensor:
    """Where v decoded to zero, or to a negative number, unless v had signs before (differences)."""
    return u == 0 if signed else u <= 0
