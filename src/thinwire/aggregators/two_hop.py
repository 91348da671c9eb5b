"""Traffic that does not grow with the workers: every rank owns a piece, adds it up, and tells all the result."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import (
    AllGather,
    AllToAll,
    Chooser,
    Compressor,
    Context,
    Gathered,
    IncompatibleParts,
    Key,
    Label,
    Payload,
    Program,
    Reduced,
    TensorSpec,
    adds_up,
    derive_key,
    narrow,
    payload_labels,
    saturate,
    shard_sizes,
)


@dataclass(frozen=True)
class TwoHop:
    """Owners of a piece average it, encode it again and tell all: about two payloads a rank, however many ranks.

    A sparse operator chooses over the whole tensor; an owner then keeps no more than its share of what the operator
    would keep. What the second encoding loses, the owner takes into its own `sent`, so nothing goes missing.
    """

    compressor: Compressor

    def __post_init__(self) -> None:
        if adds_up(self.compressor):
            name = type(self.compressor).__name__
            raise IncompatibleParts(f"TwoHop encodes twice, {name}'s payloads can be added at once; use sum of {name}")

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        rank, size = ctx.world
        cut = _Pieces(spec, size)
        mine = self._first(cut.of(tensor), tensor, ctx.key(spec.name, rank))
        boxes: Gathered = yield AllToAll(mine, _labels(spec.name, mine, rank))
        pairs = enumerate(zip(mine, cut.specs, strict=True))
        sent = torch.cat([self._decode_first(payload, piece, ctx, rank, to) for to, (payload, piece) in pairs])
        owned = cut.specs[rank]
        mean = torch.zeros(owned.shape, dtype=spec.work_dtype, device=spec.device)
        for r, box in enumerate(boxes):
            mean.add_(self._decode_first(box.to(spec.device), owned, ctx, r, rank), alpha=1 / size)
        again, keys = self._second(size), [derive_key(ctx.key(spec.name, r), "second hop") for r in range(size)]
        answer = again.encode(narrow(mean, spec.dtype), keys[rank])
        answers: Gathered = yield AllGather(answer, payload_labels(spec.name, answer))

        def whole(out: Tensor | None) -> Tensor:
            del out
            triples = zip(answers, cut.specs, keys, strict=True)
            return torch.cat([again.decode(a.to(spec.device), s, k).to(spec.work_dtype) for a, s, k in triples])

        value = answers.own("value", whole)
        at = cut.starts[rank]
        lost = mean - value[at : at + owned.numel]
        sent[at : at + owned.numel] -= size * lost  # the mean over ranks divides it by the world's size again
        return Reduced(value.view(spec.shape), saturate(sent).view(spec.shape), state)

    def _first(self, pieces: list[Tensor], tensor: Tensor, key: Key) -> tuple[Payload, ...]:
        keys = [derive_key(key, to) for to in range(len(pieces))]
        if not isinstance(self.compressor, Chooser):
            return tuple(self.compressor.encode(piece, k) for piece, k in zip(pieces, keys, strict=True))
        positions = self.compressor.choose(tensor.flatten(), key)
        kept = self.compressor.take(tensor.flatten(), positions)
        payloads, start = [], 0
        for piece, k in zip(pieces, keys, strict=True):
            numel = piece.numel()
            inside = (positions >= start) & (positions < start + numel)
            payloads.append(self.compressor.encode_at(kept[inside], positions[inside] - start, numel, k))
            start += numel
        return tuple(payloads)

    def _decode_first(self, payload: Payload, spec: TensorSpec, ctx: Context, source: int, to: int) -> Tensor:
        key = derive_key(ctx.key(spec.name, source), to)
        decode = self.compressor.decode_at if isinstance(self.compressor, Chooser) else self.compressor.decode
        return decode(payload, spec, key).to(spec.work_dtype)

    def _second(self, size: int) -> Compressor:
        return self.compressor.share(size) if isinstance(self.compressor, Chooser) else self.compressor


class _Pieces:
    """How a layer is cut: one flat piece a rank."""

    def __init__(self, spec: TensorSpec, size: int) -> None:
        self.sizes = shard_sizes(spec.numel, size)
        self.starts = [sum(self.sizes[:r]) for r in range(size)]
        self.specs = [TensorSpec(spec.name, (n,), spec.dtype, spec.device) for n in self.sizes]

    def of(self, tensor: Tensor) -> list[Tensor]:
        return list(torch.split(tensor.flatten(), self.sizes))


def _labels(layer: str, payloads: tuple[Payload, ...], rank: int) -> tuple[Label, ...]:
    """Of the pieces that leave; a rank's own piece stays."""
    return tuple(label for to, p in enumerate(payloads) if to != rank for label in payload_labels(layer, p))
