"""The majority decides every sign."""

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
    Context,
    GatheredPayloads,
    Key,
    Part,
    Payload,
    Program,
    Reduced,
    TensorSpec,
    payload_labels,
    saturate,
    shard_sizes,
)
from ..kernels import mean_magnitude
from ..wire import expect_magnitudes, expect_parts, pack_bits, unpack_bits


@dataclass(frozen=True)
class Vote:
    """Send signs to the owner of each piece and get the majority's back, scaled by the mean of |x|: 2·d bits a rank.

    SignSGD with majority vote. Ties are positive. `sent` is what each rank voted for; owners take the difference
    between the votes' mean and the verdict upon themselves, so that error feedback loses nothing.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.UNBOUNDED_BIAS})

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        rank, size = ctx.world
        flat = tensor.flatten().to(torch.float32)
        scale = mean_magnitude(flat)
        sizes = shard_sizes(spec.numel, size)
        ballots = tuple(_ballot(piece, scale) for piece in torch.split(flat, sizes))
        leaving = [label for to, b in enumerate(ballots) if to != rank for label in payload_labels(spec.name, b)]
        boxes: GatheredPayloads = yield AllToAll(ballots, tuple(leaving))
        votes = [_read(box.to(spec.device), sizes[rank]) for box in boxes]
        verdict = torch.stack([signs for signs, _ in votes]).sum(0) >= 0
        scales = torch.stack([s for _, s in votes])
        answer = _ballot(torch.where(verdict, 1.0, -1.0), (scales / size).sum())
        answers: GatheredPayloads = yield AllGather(answer, payload_labels(spec.name, answer))
        pieces = [_read(a.to(spec.device), n) for a, n in zip(answers, sizes, strict=True)]
        value = torch.cat([signs * s for signs, s in pieces]).to(spec.work_dtype)
        sent = torch.where(flat < 0, -scale, scale).to(spec.work_dtype)
        start, stop = sum(sizes[:rank]), sum(sizes[: rank + 1])
        mean_vote = sum(signs.to(spec.work_dtype) * s / size for signs, s in votes)
        sent[start:stop] += size * (value[start:stop] - mean_vote)
        return Reduced(value.view(spec.shape), saturate(sent).view(spec.shape), state)


def _ballot(numbers: Tensor, scale: Tensor) -> Payload:
    signs = Part("signs", pack_bits(numbers < 0, 1), float(numbers.numel()))
    return Payload.of([signs, Part("scale", scale.reshape(1), 32.0)])


def _read(ballot: Payload, numel: int) -> tuple[Tensor, Tensor]:
    """Signs as +1 and -1, and the scale."""
    packed, scale = expect_parts(ballot, 2, "Vote")
    negative = unpack_bits(packed, numel, 1).to(torch.float32)
    return 1 - 2 * negative, expect_magnitudes(scale, 1, "Vote scale")[0]
