"""Aggregation of pairs (m, v) with payloads that are added on the wire: sketches and unions."""

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
from .pair_compressor import PairSettings, row_spec
from .transforms import compute_block_means, expand_block_means, restore_v, transform_v


@dataclass(frozen=True)
class PairAggregator(PairSettings):
    """Keep m and √v at the coordinates that the compressor selects and add them by `inner`; send block means dense.

    √v is averaged, so the square of the average is less than the average of v by its variance over ranks.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.WRAPS_COMPRESSOR})

    inner: Aggregator[Any] = field(kw_only=True)

    def init(self, spec: TensorSpec, key: Key) -> Any:
        return self.inner.init(spec, key)

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Program[Reduced[Any]]:
        row, key = row_spec(spec), ctx.key(spec.name, ctx.world.rank)
        u = transform_v(tensor[1].to(spec.work_dtype), self.transmit)
        m = self._kept(tensor[0], row, key)
        if not self.mask:
            kept, means = self._kept(u.to(spec.dtype), row, key), u.new_zeros(0)
        else:
            means = saturate(compute_block_means(u, m == 0, self.block))
            kept = torch.where(m == 0, 0, u - self._expand(means, row))
        programs = [self.inner.reduce(torch.stack([m, kept]).to(spec.dtype), spec, state, ctx)]
        if self.mask:
            programs.append(all_reduce_mean(means, spec, ctx, "means"))  # type: ignore[arg-type]
        out, *agreed = yield from fuse(programs)
        value = self._whole(out.value, row, agreed[0] if agreed else means)  # type: ignore[arg-type]
        return Reduced(value, lambda: self._whole(out.sent, row, means), out.state)

    def _kept(self, tensor: Tensor, row: TensorSpec, key: Key) -> Tensor:
        return self.compressor.decode(self.compressor.encode(tensor, key), row, key).to(row.work_dtype)

    def _expand(self, means: Tensor, row: TensorSpec) -> Tensor:
        return expand_block_means(means, row.numel, self.block).view(row.shape)

    def _whole(self, pair: Tensor, row: TensorSpec, means: Tensor) -> Tensor:
        u = pair[1] + self._expand(means, row) if self.mask else pair[1]
        return saturate(torch.stack([pair[0], restore_v(u, self.transmit)]))
