"""All workers inside one process, one request at a time: deterministic, and disagreements are errors at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from ..core import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Gathered,
    Op,
    Payload,
    Program,
    Request,
    Swap,
    World,
    describe,
    payload_for,
    wire_bytes,
)
from .agreement import check_agreement, check_pairs
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
        check_agreement([(asked[r].step, describe(asked[r])) if r in asked else finished for r in ranks])
        requests = [asked[rank] for rank in range(len(programs))]
        answers = _answer(requests)
        for rank, meter in enumerate(meters or ()):
            _count(requests, World(rank, len(requests)), meter)


def _answer(requests: Sequence[Request]) -> list[Any]:
    first = requests[0]
    if isinstance(first, AllReduce):
        total = combine([r.tensor for r in requests if isinstance(r, AllReduce)], first.op)
        return [total.clone() for _ in requests]
    if isinstance(first, AllToAll):
        boxes = [r.payloads for r in requests if isinstance(r, AllToAll)]
        return [Gathered(Payload(box[rank].parts) for box in boxes) for rank in range(len(requests))]
    if isinstance(first, Swap):
        swaps = [r for r in requests if isinstance(r, Swap)]
        check_pairs(swaps)
        return [Gathered(Payload(payload_for(swaps[s], r).parts) for s in swap.sources) for r, swap in enumerate(swaps)]
    payloads = [r.payload for r in requests if isinstance(r, AllGather | Broadcast)]
    if isinstance(first, Broadcast):
        return [Payload(payloads[first.root].parts)] * len(requests)
    return [Gathered(Payload(p.parts) for p in payloads).also(shared=True)] * len(requests)


def combine(tensors: Sequence[torch.Tensor], op: Op) -> torch.Tensor:
    """Sum, maximum or bits of any in rank order: the same bits wherever it is computed."""
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        if op is Op.SUM:
            total += tensor
        elif op is Op.OR:
            total |= tensor
        else:
            torch.maximum(total, tensor, out=total)
    return total


def _count(requests: Sequence[Request], world: World, meter: Meter) -> None:
    request = requests[world.rank]
    heard = [requests[source] for source in request.sources] if isinstance(request, Swap) else requests
    sizes = [payload_for(r, world.rank).nbytes for r in heard if not isinstance(r, AllReduce)]
    sent, received = wire_bytes(request, world, sizes)
    meter.record(request, world, sent, received, *header_bytes(requests, world))
