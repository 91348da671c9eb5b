"""signSGD with majority vote (Bernstein et al., 2019): signs to shard owners, the majority's signs and a scale back."""

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
from .shards import outgoing_labels


@dataclass(frozen=True)
class Vote:
    """Send signs to the owner of each shard, receive the majority's signs times the mean of |x|: 2·d bits per rank.

    Ties are positive. `sent` is a rank's own signs and scale; owners add the difference between the result and the mean
    of the votes to their own `sent`, so that error feedback loses nothing.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.UNBOUNDED_BIAS})

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        rank, size = ctx.world
        flat = tensor.flatten().to(torch.float32)
        scale = mean_magnitude(flat)
        sizes = shard_sizes(spec.numel, size)
        payloads = tuple(_encode(shard, scale) for shard in torch.split(flat, sizes))
        received: GatheredPayloads = yield AllToAll(payloads, outgoing_labels(spec.name, payloads, rank))
        votes = [_decode(payload.to(spec.device), sizes[rank]) for payload in received]
        majority = torch.stack([signs for signs, _ in votes]).sum(0) >= 0
        scales = torch.stack([s for _, s in votes])
        answer = _encode(torch.where(majority, 1.0, -1.0), (scales / size).sum())
        answers: GatheredPayloads = yield AllGather(answer, payload_labels(spec.name, answer))
        shards = [_decode(a.to(spec.device), n) for a, n in zip(answers, sizes, strict=True)]
        value = torch.cat([signs * s for signs, s in shards]).to(spec.work_dtype)
        sent = torch.where(flat < 0, -scale, scale).to(spec.work_dtype)
        start, stop = sum(sizes[:rank]), sum(sizes[: rank + 1])
        mean_vote = sum(signs.to(spec.work_dtype) * s / size for signs, s in votes)
        sent[start:stop] += size * (value[start:stop] - mean_vote)
        return Reduced(value.view(spec.shape), saturate(sent).view(spec.shape), state)


def _encode(values: Tensor, scale: Tensor) -> Payload:
    signs = Part("signs", pack_bits(values < 0, 1), float(values.numel()))
    return Payload.of([signs, Part("scale", scale.reshape(1), 32.0)])


def _decode(payload: Payload, numel: int) -> tuple[Tensor, Tensor]:
    """Signs as +1 and -1, and the scale."""
    packed, scale = expect_parts(payload, 2, "Vote")
    negative = unpack_bits(packed, numel, 1).to(torch.float32)
    return 1 - 2 * negative, expect_magnitudes(scale, 1, "Vote scale")[0]
