"""Pairs that are added on the wire: sketches and unions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..aggregators.dense import all_reduce_mean
from ..core import (
    Aggregator,
    Capabilities,
    Capability,
    Context,
    Key,
    Program,
    Reduced,
    TensorSpec,
    fuse,
    saturate,
)
from .pairs import PairSettings, row_spec
from .transforms import block_means, restored, spread, transformed


@dataclass(frozen=True)
class PairedSum(PairSettings):
    """Keep m and √v where the compressor chooses, and add them by `inner`; block means of what is left travel dense.

    What adds up is √v, so that the average's square is at most the average of v, by its variance over the hosts.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.WRAPS_COMPRESSOR})

    inner: Aggregator[Any] = field(kw_only=True)

    def init(self, spec: TensorSpec, key: Key) -> Any:
        return self.inner.init(spec, key)

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Program[Reduced[Any]]:
        row, key = row_spec(spec), ctx.key(spec.name, ctx.world.rank)
        u = transformed(tensor[1].to(spec.work_dtype), self.transmit)
        m = self._kept(tensor[0], row, key)
        if not self.mask:
            kept, means = self._kept(u.to(spec.dtype), row, key), u.new_zeros(0)
        else:
            means = saturate(block_means(u, m == 0, self.block))
            kept = torch.where(m == 0, 0, u - self._spread(means, row))
        programs = [self.inner.reduce(torch.stack([m, kept]).to(spec.dtype), spec, state, ctx)]
        if self.mask:
            programs.append(all_reduce_mean(means, spec, ctx, "means"))  # type: ignore[arg-type]
        out, *agreed = yield from fuse(programs)
        value = self._whole(out.value, row, agreed[0] if agreed else means)  # type: ignore[arg-type]
        return Reduced(value, lambda: self._whole(out.sent, row, means), out.state)

    def _kept(self, tensor: Tensor, row: TensorSpec, key: Key) -> Tensor:
        return self.compressor.decode(self.compressor.encode(tensor, key), row, key).to(row.work_dtype)

    def _spread(self, means: Tensor, row: TensorSpec) -> Tensor:
        return spread(means, row.numel, self.block).view(row.shape)

    def _whole(self, pair: Tensor, row: TensorSpec, means: Tensor) -> Tensor:
        u = pair[1] + self._spread(means, row) if self.mask else pair[1]
        return saturate(torch.stack([pair[0], restored(u, self.transmit)]))
