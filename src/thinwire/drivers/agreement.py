"""Compare the requests of all ranks and report which ranks differ."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import ProtocolError


def check_agreement(requests: Sequence[tuple[int, str]]) -> None:
    """Compare all ranks' requests, given as (step, description) in rank order.

    Raises:
        ProtocolError: they differ; the text names the step, the ranks and their requests.
    """
    if len(set(requests)) == 1:
        return
    ranks_by_request: dict[tuple[int, str], list[int]] = {}
    for rank, request in enumerate(requests):
        ranks_by_request.setdefault(request, []).append(rank)
    groups = [f"{_subject(ranks)} {text} (step {step})" for (step, text), ranks in ranks_by_request.items()]
    raise ProtocolError(f"step {min(step for step, _ in requests)}: ranks disagree: {'; '.join(groups)}")


def _subject(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} requests" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} request"
