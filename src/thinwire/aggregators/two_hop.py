"""Traffic that does not grow with the workers: every rank owns a piece, adds it up, and tells all the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    AllGather,
    AllToAll,
    Capabilities,
    Capability,
    Compressor,
    Context,
    GatheredPayloads,
    IncompatibleParts,
    Key,
    Program,
    Reduced,
    TensorSpec,
    cast_saturating,
    is_additive,
    payload_labels,
    saturate,
)
from .pieces import Pieces, decoded_pieces, encode_pieces, leaving_labels, mean_of_pieces, second_key, share_of


@dataclass(frozen=True)
class TwoHop:
    """Owners of a piece average it, encode it again and tell all: about two payloads a rank, however many ranks.

    A sparse operator chooses over the whole tensor; an owner then keeps no more than its share of what the operator
    would keep. What the second encoding loses, the owner takes into its own `sent`, so nothing goes missing.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.LOSSLESS, Capability.WRAPS_COMPRESSOR})

    compressor: Compressor

    def __post_init__(self) -> None:
        if is_additive(self.compressor):
            name = type(self.compressor).__name__
            raise IncompatibleParts(f"TwoHop encodes twice, {name}'s payloads can be added at once; use sum of {name}")

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        rank, size = ctx.world
        cut = Pieces(spec, size)
        mine = encode_pieces(self.compressor, tensor, cut, ctx.key(spec.name, rank))
        boxes: GatheredPayloads = yield AllToAll(
            mine, leaving_labels(spec.name, mine, rank), expected_bytes=spec.num_bytes
        )
        sent = decoded_pieces(self.compressor, mine, cut, ctx, rank)
        owned = cut.specs[rank]
        mean = mean_of_pieces(self.compressor, boxes, owned, ctx, rank)
        again, keys = share_of(self.compressor, size), [second_key(ctx, spec.name, r) for r in range(size)]
        answer = again.encode(cast_saturating(mean, spec.dtype), keys[rank])
        answers: GatheredPayloads = yield AllGather(
            answer, payload_labels(spec.name, answer), expected_bytes=spec.num_bytes
        )

        def whole(out: Tensor | None) -> Tensor:
            del out
            triples = zip(answers, cut.specs, keys, strict=True)
            return torch.cat([again.decode(a.to(spec.device), s, k).to(spec.work_dtype) for a, s, k in triples])

        value = answers.cached_copy("value", whole)
        at = cut.starts[rank]
        lost = mean - value[at : at + owned.numel]
        sent[at : at + owned.numel] -= size * lost  # the mean over ranks divides it by the world's size again
        return Reduced(value.view(spec.shape), saturate(sent).view(spec.shape), state)
