"""Running programs: side by side as one (`fuse`), stamped with a step, or alone in a world of one (`loopback`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

from .errors import ProtocolError
from .requests import AllGather, AllReduce, AllToAll, Broadcast, Gathered, Label, Op, Program, Request, Swap
from .tensors import Payload, nbytes_of
from .together import Together, groups_of, joined

T = TypeVar("T")


def drive(program: Program[T], perform: Callable[[Request], Any], first: Request | None = None) -> T:
    """Run one program to its end; `perform` answers its requests. `first`: what it asked for when somebody began it."""
    answer: Any = None if first is None else perform(first)
    while True:
        try:
            request = program.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        answer = perform(request)


def loopback(program: Program[T]) -> T:
    """Run a program in a world of one: nothing is sent, every request is answered with what it asked."""
    return drive(program, answer_alone)


def answer_alone(request: Request) -> Any:
    if isinstance(request, AllReduce):
        return request.tensor.clone()
    if isinstance(request, AllToAll):
        return Gathered(request.payloads)
    if isinstance(request, Swap):
        if request.outgoing or request.sources:
            raise ProtocolError(f"step {request.step}: rank 0 is alone, but swaps with ranks {partners(request)}")
        return Gathered()
    return Gathered([request.payload]) if isinstance(request, AllGather) else request.payload


def answer_alike(request: Request, size: int) -> Any:
    """What rank 0 would hear from so many ranks if all of them had asked for the same."""
    if isinstance(request, AllReduce):
        return request.tensor * size if request.op is Op.SUM else request.tensor.clone()
    if isinstance(request, AllToAll):
        return Gathered([request.payloads[0]] * size)
    if isinstance(request, Swap):
        return Gathered([payload for _, payload in request.outgoing[:1]] * len(request.sources))
    return Gathered([request.payload] * size) if isinstance(request, AllGather) else request.payload


def stamped(program: Program[T], step: int) -> Program[T]:
    """The same program with its step written on every request, for the meter and for error texts."""
    answer: Any = None
    while True:
        try:
            request = program.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        answer = yield replace(request, step=step)


def fuse(programs: Sequence[Program[T]]) -> Program[list[T]]:
    """Run programs side by side; the requests of one round travel as one request per kind and type."""
    results, _ = yield from _fuse(programs, None)
    return results


def fuse_flagged(programs: Sequence[Program[T]], flag: bool) -> Program[tuple[list[T], bool]]:
    """`fuse`, and one more bit in its first message: did any rank raise its flag? All ranks get the same answer.

    A Swap reaches partners only. So each carries the flag, of this rank or of any that it has heard of: in programs
    that go all round it reaches everybody before they end. One that is `forgiving` tells its program which sources had
    raised theirs, and nobody else: where there are none but those, a rank's own flag is its own affair, and the answer
    is False.
    """
    return (yield from _fuse(programs, flag))


_FLAG = -1  # the flag's place among the requests of a round; those for each Swap are below, programs have 0, 1, 2 ...


def _fuse(programs: Sequence[Program[T]], flag: bool | None) -> Program[tuple[list[T], bool]]:
    running = _Running(programs)
    answers: dict[int, Any] = dict.fromkeys(range(len(programs)))
    raised, first = False, True
    while answers:
        asked = running.resume(answers)
        flags = {} if flag is None else _flag_requests(list(asked.values()), flag or raised, first)
        first = False
        answers = yield from _merge(asked | flags)
        for place, request in flags.items():
            raised |= _heard(request, answers.pop(place), asked, answers, flag or raised)
    return [running.results[i] for i in range(len(programs))], raised


class _Running:
    """Programs side by side, and those that were begun for several of them together."""

    def __init__(self, programs: Sequence[Program[Any]]) -> None:
        self.programs, self.results = list(programs), dict[int, Any]()
        self._for: dict[int, list[int]] = {}  # a program for several: who waits for it

    def resume(self, answers: Mapping[int, Any]) -> dict[int, Request]:
        """What they ask for next; some have ended. Whoever asks for Together is answered here."""
        asked: dict[int, Request] = {}
        together: dict[int, Together] = {}
        ready = dict(answers)
        while ready:
            i, answer = next(iter(ready.items()))
            del ready[i]
            try:
                request: Any = self.programs[i].send(answer)
            except StopIteration as done:
                self.results[i] = done.value
                if i in self._for:
                    ready |= dict(zip(self._for.pop(i), done.value, strict=True))
            else:
                (together if isinstance(request, Together) else asked)[i] = request
            if not ready and together:
                ready, together = self._begun(together), {}
        return asked

    def _begun(self, together: Mapping[int, Together]) -> dict[int, Any]:
        first, groups = len(self.programs), groups_of(together)
        self.programs += [joined([together[i] for i in group]) for group in groups]
        self._for |= dict(enumerate(groups, first))
        return dict.fromkeys(range(first, len(self.programs)))


def _flag_requests(others: Sequence[Request], flag: bool, first: bool) -> dict[int, Request]:
    """One to all ranks with the first request that goes to all; one with each Swap, since that goes to partners."""
    swaps = {request.among: request for request in others if isinstance(request, Swap)}
    collectives = [request for request in others if not isinstance(request, Swap)]
    flags: dict[int, Request] = {}
    if first and (collectives or not swaps):
        flags[_FLAG] = _flag_request(collectives, flag)
    for at, swap in enumerate(swaps.values(), 1):
        forgiving = all(r.forgiving for r in others if isinstance(r, Swap) and r.among == swap.among)
        flags[_FLAG - at] = _flag_to_partners(swap, flag, forgiving)
    return flags


def _flag_to_partners(swap: Swap, flag: bool, forgiving: bool) -> Swap:
    payload, label = Payload((torch.tensor([flag], dtype=torch.uint8),)), Label("", "flag", 1, 1.0)
    return replace(
        swap, outgoing=tuple((to, payload) for to in swap.receivers), form=(torch.uint8,), forgiving=forgiving,
        expects=1, labels=(label,),
    )  # fmt: skip


def _heard(request: Request, answer: Any, asked: dict[int, Request], answers: dict[int, Any], flag: bool) -> bool:
    """Whether a flag ends the step. Programs that can do without those who raised it are told who they are."""
    if not isinstance(request, Swap):
        return _flag_answer(answer)
    absent = frozenset(s for s, payload in zip(request.sources, answer, strict=True) if bool(payload.parts[0].any()))
    for i, other in asked.items():
        if isinstance(other, Swap) and other.among == request.among and other.forgiving:
            answers[i].absent = absent
    return not request.forgiving and (flag or bool(absent))


def _flag_request(others: Sequence[Request], flag: bool) -> Request:
    """In the form of a request that is being sent anyway, so that it costs an element and no message."""
    payload, label = Payload((torch.tensor([flag], dtype=torch.uint8),)), Label("", "flag", 1, 1.0)
    if any(isinstance(r, AllGather) for r in others):
        return AllGather(payload, (label,))
    boxes = next((r.payloads for r in others if isinstance(r, AllToAll)), None)
    if boxes is not None:
        return AllToAll((payload,) * len(boxes), (label,) * (len(boxes) - 1))
    reduces = [r for r in others if isinstance(r, AllReduce)]
    host = next((r for r in reduces if r.op is Op.OR or r.tensor.is_floating_point()), None)
    if host is None:  # bytes would wrap around in a sum of 256 ranks
        return AllReduce(torch.tensor([flag], dtype=torch.uint8), Op.MAX, (label,))
    part = torch.tensor([flag], dtype=host.tensor.dtype, device=host.tensor.device)
    return AllReduce(part, host.op, (Label("", "flag", nbytes_of(part), 1.0),))


def _flag_answer(answer: Any) -> bool:
    if isinstance(answer, Tensor):
        return bool((answer != 0).any())
    return bool(answer.once("flag", lambda: any(bool(payload.parts[0].any()) for payload in answer)))


def _merge(asked: dict[int, Request]) -> Program[dict[int, Any]]:
    """One request per kind, type and operation; the answers cut up again. The order depends on the requests alone."""
    answers: dict[int, Any] = {}
    groups: dict[tuple[str, ...], dict[int, Request]] = {}
    for i, request in asked.items():
        groups.setdefault(_group(request), {})[i] = request
    for group in sorted(groups):
        answers |= yield from _merge_group(groups[group])
    return dict(sorted(answers.items()))


def _group(request: Request) -> tuple[str, ...]:
    if isinstance(request, AllGather):
        return ("AllGather",)
    if isinstance(request, AllReduce):
        return ("AllReduce", str(request.tensor.dtype), str(request.tensor.device), request.op.value)
    if isinstance(request, Swap):  # not by partners: those differ from rank to rank, and so would the order
        return ("Swap", request.among)
    return ("Broadcast", str(request.root)) if isinstance(request, Broadcast) else (type(request).__name__,)


def _merge_group(group: dict[int, Request]) -> Program[dict[int, Any]]:
    labels = tuple([label for request in group.values() for label in request.labels])
    expects = sum(request.expects for request in group.values() if not isinstance(request, AllReduce))
    first = next(iter(group.values()))
    if isinstance(first, AllReduce):
        tensors = [request.tensor for request in group.values() if isinstance(request, AllReduce)]
        whole = tensors[0].flatten() if len(tensors) == 1 else torch.cat([t.flatten() for t in tensors])
        total = yield replace(first, tensor=whole, labels=labels)
        pieces = total.split([t.numel() for t in tensors])
        return {i: piece.view(t.shape) for i, t, piece in zip(group, tensors, pieces, strict=True)}
    if isinstance(first, AllToAll):
        by_request = [request.payloads for request in group.values() if isinstance(request, AllToAll)]
        joined = tuple(map(_join, zip(*by_request, strict=True)))
        received = yield replace(first, payloads=joined, labels=labels, expects=expects)
        return dict(zip(group, _cut_all(received, [len(p[0].parts) for p in by_request]), strict=True))
    if isinstance(first, Swap):
        return (yield from _merge_swaps(first, group, labels, expects))
    payloads = [r.payload for r in group.values() if isinstance(r, AllGather | Broadcast)]
    answer = yield replace(first, payload=_join(payloads), labels=labels, expects=expects)
    counts = [len(payload.parts) for payload in payloads]
    if isinstance(first, Broadcast):
        return dict(zip(group, _cut(answer, counts), strict=True))
    gathered = answer.once(("cut", *counts), lambda: _cut_all(answer, counts))
    return dict(zip(group, gathered, strict=True))


def _merge_swaps(
    first: Swap, group: dict[int, Request], labels: tuple[Label, ...], expects: int
) -> Program[dict[int, Any]]:
    swaps = [request for request in group.values() if isinstance(request, Swap)]
    if odd := [swap for swap in swaps if (swap.receivers, swap.sources) != (first.receivers, first.sources)]:
        raise ProtocolError(
            f"step {first.step}: Swaps among {first.among!r} have partners {partners(first)} and {partners(odd[0])}; "
            "those of one round with other partners need another name in `among`"
        )
    boxes = [[payload for _, payload in swap.outgoing] for swap in swaps]
    joined = tuple(zip(first.receivers, map(_join, zip(*boxes, strict=True)), strict=True))
    form = tuple(dtype for swap in swaps for dtype in swap.form)
    forgiving = all(swap.forgiving for swap in swaps)
    received = yield replace(first, outgoing=joined, form=form, forgiving=forgiving, expects=expects, labels=labels)
    return dict(zip(group, _cut_all(received, [len(swap.form) for swap in swaps]), strict=True))


def partners(swap: Swap) -> str:
    """For an error text."""
    return f"(to {list(swap.receivers)}, from {list(swap.sources)})"


def _join(payloads: Sequence[Payload]) -> Payload:
    return Payload(tuple([part for payload in payloads for part in payload.parts]))


def _cut_all(answer: Gathered, counts: Sequence[int]) -> list[Gathered]:
    """One rank's answer holds all layers; one layer's answer holds all ranks."""
    by_layer = zip(*[_cut(payload, counts) for payload in answer], strict=True) if answer else ((),) * len(counts)
    return [Gathered(payloads).also(answer.shared) for payloads in by_layer]


def _cut(payload: Payload, counts: Sequence[int]) -> list[Payload]:
    ends = accumulate(counts)
    return [Payload(payload.parts[end - count : end]) for count, end in zip(counts, ends, strict=True)]
