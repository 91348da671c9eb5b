"""Lockstep driver: run all ranks in one process, one request at a time; deterministic, and used as the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from ..core import Program, Request, World
from .agreement import check_agreement
from .headers import header_bytes
from .meter import Meter

T = TypeVar("T")


def lockstep(programs: Sequence[Program[T]], meters: Sequence[Meter] | None = None) -> list[T]:
    """Run one program per rank to its end and return the results in rank order.

    Args:
        programs: one per rank. All must make the same requests.
        meters: one per rank; they count the bytes that real ranks would send, headers included.

    Raises:
        ProtocolError: ranks made different requests.
    """
    results: dict[int, T] = {}
    answers: list[Any] = [None] * len(programs)
    while True:
        pending: dict[int, Request] = {}
        for rank, program in enumerate(programs):
            try:
                pending[rank] = program.send(answers[rank])
            except StopIteration as done:
                results[rank] = done.value
        if not pending:
            return [results[rank] for rank in range(len(programs))]
        finished = (max(request.step for request in pending.values()), "nothing, it has finished")
        ranks = range(len(programs))
        check_agreement([(pending[r].step, pending[r].describe()) if r in pending else finished for r in ranks])
        requests = [pending[rank] for rank in ranks]
        answers = requests[0].answer_all(requests)
        for rank, meter in enumerate(meters or ()):
            _count(requests, World(rank, len(requests)), meter)


def _count(requests: Sequence[Request], world: World, meter: Meter) -> None:
    common = header_bytes(requests, world) if requests[world.rank].has_common_header(world) else None
    for members in zip(*[request.members() for request in requests], strict=True):
        request = members[world.rank]
        sent, received = request.wire_bytes(world, request.sizes_for(members, world.rank))
        meter.record(request, world, sent, received, *(header_bytes(members, world) if common is None else common))
        common = None if common is None else (0, 0)  # counted with the first member
