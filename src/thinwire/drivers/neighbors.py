"""Neighbor exchange: point-to-point messages between the ranks that a topology connects; other ranks take no part."""

from __future__ import annotations

from ..core import GatheredPayloads, NeighborExchange, ProtocolError
from ..wire import pack_payload, unpack_payload
from .headers import make_header
from .peers import Peers


def neighbor_exchange(request: NeighborExchange, peers: Peers) -> GatheredPayloads:
    """Exchange payloads with the neighbors. Ranks that are not neighbors may be at different steps."""
    packed = {id(payload): pack_payload(payload) for payload in dict.fromkeys(p for _, p in request.outgoing)}
    outgoing = {to: packed[id(payload)] for to, payload in request.outgoing}  # often one payload for all
    headers, received = peers.exchange(outgoing, request.sources, request)
    own = make_header(request, 0)
    for source, header in headers.items():
        if not header.agrees_with(own):
            raise ProtocolError(
                f"step {request.step}: ranks disagree: rank {peers.world.rank} requests {request.describe()}, "
                f"rank {source} requests something else (step {header.step}); see the log of that rank"
            )
    return GatheredPayloads(unpack_payload(received[source], request.form) for source in request.sources)
