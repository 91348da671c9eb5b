"""Saying who wants what, when ranks do not want the same."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import ProtocolError


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
