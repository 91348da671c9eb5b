"""NeighborExchanges: messages between partners, of which no other rank hears."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import GatheredPayloads, NeighborExchange, ProtocolError
from ..wire import pack_payload, unpack_payload
from .headers import HEADER_BYTES, Header, check_lengths, headers_of
from .peers import Peers


def swap(request: NeighborExchange, peers: Peers) -> GatheredPayloads:
    """Headers to and from partners, then payloads. Ranks that are no partners may be steps apart."""
    packed = {id(payload): pack_payload(payload) for payload in dict.fromkeys(p for _, p in request.outgoing)}
    leaving = {to: packed[id(payload)] for to, payload in request.outgoing}  # often one payload for all
    ranks, rank = range(peers.world.size), peers.world.rank
    mine = headers_of(request, [leaving[to].numel() if to in leaving else 0 for to in ranks])
    shown = _deliver(
        request, {to: mine[to].pack() for to in leaving}, dict.fromkeys(request.sources, HEADER_BYTES), peers
    )
    headers = {source: Header.unpack(blob) for source, blob in shown.items()}
    for source, header in headers.items():
        if header[:2] != mine[rank][:2]:
            raise ProtocolError(
                f"step {request.step}: ranks disagree: rank {rank} asks {request.describe()}, "
                f"rank {source} asks something else (step {header.step}); look into that rank's own log"
            )
    sizes = {source: header.num_bytes for source, header in headers.items()}
    check_lengths(sizes, max(header.num_bytes for header in mine), request)
    blobs = _deliver(request, leaving, sizes, peers)
    return GatheredPayloads(unpack_payload(blobs[source], request.form) for source in request.sources)


def _deliver(
    request: NeighborExchange, outgoing: dict[int, Tensor], sizes: dict[int, int], peers: Peers
) -> dict[int, Tensor]:
    nothing, ranks = torch.empty(0, dtype=torch.uint8), range(peers.world.size)
    blobs = peers.deliver([outgoing.get(r, nothing) for r in ranks], [sizes.get(r, 0) for r in ranks], request)
    return {source: blobs[source] for source in sizes}
