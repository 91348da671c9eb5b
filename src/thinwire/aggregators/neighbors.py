"""Exchange of one payload with every neighbor of a topology (`gossip`, `choco`)."""

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


def make_exchange(neighbors: Neighbors, own: Payload, topology: Topology, spec: TensorSpec) -> NeighborExchange:
    """The request that sends `own` to all receivers and asks for the payloads of all sources.

    The payload is labelled once, however many ranks receive it.
    """
    return NeighborExchange(
        outgoing=tuple((to, own) for to in neighbors.receivers),
        sources=tuple(neighbors.incoming),
        form=types_of(own),
        group=repr(topology),
        tolerate_missing=True,
        expected_bytes=spec.num_bytes,
        labels=payload_labels(spec.name, own),
    )


def decode_from(compressor: Compressor, payload: Payload, spec: TensorSpec, ctx: Context, rank: int) -> Tensor:
    """The tensor that `rank` sent, in the dtype of sums."""
    return compressor.decode(payload.to(spec.device), spec, ctx.key(spec.name, rank)).to(spec.work_dtype)
