"""Neighbor exchange: point-to-point messages between the ranks that a topology connects; other ranks take no part."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import GatheredPayloads, NeighborExchange, ProtocolError
from ..wire import pack_payload, unpack_payload
from .headers import HEADER_BYTES, RequestHeader, check_lengths, make_headers
from .peers import Peers


def neighbor_exchange(request: NeighborExchange, peers: Peers) -> GatheredPayloads:
    """Exchange headers with the neighbors, then payloads. Ranks that are not neighbors may be at different steps."""
    packed = {id(payload): pack_payload(payload) for payload in dict.fromkeys(p for _, p in request.outgoing)}
    outgoing = {to: packed[id(payload)] for to, payload in request.outgoing}  # often one payload for all
    ranks, rank = range(peers.world.size), peers.world.rank
    own_headers = make_headers(request, [outgoing[to].numel() if to in outgoing else 0 for to in ranks])
    received = _exchange_bytes(
        request, {to: own_headers[to].pack() for to in outgoing}, dict.fromkeys(request.sources, HEADER_BYTES), peers
    )
    headers = {source: RequestHeader.unpack(blob) for source, blob in received.items()}
    for source, header in headers.items():
        if header[:2] != own_headers[rank][:2]:
            raise ProtocolError(
                f"step {request.step}: ranks disagree: rank {rank} requests {request.describe()}, "
                f"rank {source} requests something else (step {header.step}); see the log of that rank"
            )
    sizes = {source: header.num_bytes for source, header in headers.items()}
    check_lengths(sizes, max(header.num_bytes for header in own_headers), request)
    blobs = _exchange_bytes(request, outgoing, sizes, peers)
    return GatheredPayloads(unpack_payload(blobs[source], request.form) for source in request.sources)


def _exchange_bytes(
    request: NeighborExchange, outgoing: dict[int, Tensor], sizes: dict[int, int], peers: Peers
) -> dict[int, Tensor]:
    empty, ranks = torch.empty(0, dtype=torch.uint8), range(peers.world.size)
    blobs = peers.all_to_all_bytes([outgoing.get(r, empty) for r in ranks], [sizes.get(r, 0) for r in ranks], request)
    return {source: blobs[source] for source in sizes}
