"""Saying who wants what, when ranks do not want the same."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import ProtocolError, Swap, World, describe
from ..core.programs import partners


def check_agreement(wishes: Sequence[tuple[int, str]]) -> None:
    """Each rank's (step, description of its request); a ProtocolError names step, ranks and requests if they differ."""
    if len(set(wishes)) == 1:
        return
    ranks: dict[tuple[int, str], list[int]] = {}
    for rank, wish in enumerate(wishes):
        ranks.setdefault(wish, []).append(rank)
    sides = [f"{_names(who)} {text} (step {step})" for (step, text), who in ranks.items()]
    raise ProtocolError(f"step {min(step for step, _ in wishes)}: ranks disagree: {'; '.join(sides)}")


def _names(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} asks" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} ask"


def check_partners(request: Swap, world: World) -> None:
    """Partners must be other ranks of this world."""
    odd = [rank for rank in (*request.receivers, *request.sources) if rank == world.rank or not 0 <= rank < world.size]
    if odd:
        raise ProtocolError(
            f"step {request.step}: rank {world.rank} of {world.size} swaps with {odd[0]} {partners(request)}; "
            "partners are other ranks"
        )


def check_pairs(requests: Sequence[Swap]) -> None:
    """Whoever waits for a message is sent one, and whoever is sent one waits for it; else both ranks are named."""
    for rank, request in enumerate(requests):
        check_partners(request, World(rank, len(requests)))
    for rank, request in enumerate(requests):
        for source in request.sources:
            if rank not in requests[source].receivers:
                raise ProtocolError(
                    f"step {request.step}: rank {rank} waits for rank {source}, which sends it nothing "
                    f"{partners(requests[source])}, in {describe(request)}"
                )
        for to in request.receivers:
            if rank not in requests[to].sources:
                raise ProtocolError(
                    f"step {request.step}: rank {rank} sends to rank {to}, which does not wait for it "
                    f"{partners(requests[to])}, in {describe(request)}"
                )
