"""Sending one payload to all partners of a topology, and reading theirs."""

from __future__ import annotations

from torch import Tensor

from ..core import (
    Compressor,
    Context,
    NeighborExchange,
    Neighbors,
    Payload,
    TensorSpec,
    Topology,
    payload_labels,
    types_of,
)


def swap_with(near: Neighbors, mine: Payload, topology: Topology, spec: TensorSpec) -> NeighborExchange:
    """Our payload to all who hear us, theirs from all whom we hear. It is labelled once, however many get it."""
    return NeighborExchange(
        outgoing=tuple((to, mine) for to in near.receivers),
        sources=tuple(near.incoming),
        form=types_of(mine),
        group=repr(topology),
        tolerate_missing=True,
        expected_bytes=spec.num_bytes,
        labels=payload_labels(spec.name, mine),
    )


def decoded(compressor: Compressor, payload: Payload, spec: TensorSpec, ctx: Context, rank: int) -> Tensor:
    """What a rank sent, in the type of sums."""
    return compressor.decode(payload.to(spec.device), spec, ctx.key(spec.name, rank)).to(spec.work_dtype)
