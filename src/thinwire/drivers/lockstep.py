"""All workers inside one process, one request at a time: deterministic, and disagreements are errors at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from ..core import Program, Request, World
from .agreement import check_agreement
from .headers import header_bytes
from .meter import Meter

T = TypeVar("T")


def lockstep(programs: Sequence[Program[T]], meters: Sequence[Meter] | None = None) -> list[T]:
    """Run one program per rank to its end and give their results in rank order; `meters` count as real ranks would."""
    results: dict[int, T] = {}
    answers: list[Any] = [None] * len(programs)
    while True:
        asked: dict[int, Request] = {}
        for rank, program in enumerate(programs):
            try:
                asked[rank] = program.send(answers[rank])
            except StopIteration as done:
                results[rank] = done.value
        if not asked:
            return [results[rank] for rank in range(len(programs))]
        finished = (max(request.step for request in asked.values()), "nothing, it has finished")
        ranks = range(len(programs))
        check_agreement([(asked[r].step, asked[r].describe()) if r in asked else finished for r in ranks])
        requests = [asked[rank] for rank in range(len(programs))]
        answers = requests[0].answer_all(requests)
        for rank, meter in enumerate(meters or ()):
            _count(requests, World(rank, len(requests)), meter)


def _count(requests: Sequence[Request], world: World, meter: Meter) -> None:
    request = requests[world.rank]
    sent, received = request.wire_bytes(world, request.sizes_for(requests, world.rank))
    meter.record(request, world, sent, received, *header_bytes(requests, world))
