"""Running programs: `drive` to the end, `fuse` several into one, `with_step`, or `loopback` in a world of one rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

from .requests import Program, Request, RequestGroup, flag_alone

T = TypeVar("T")


def drive(program: Program[T], perform: Callable[[Request], Any], first: Request | None = None) -> T:
    """Run one program to its end.

    Args:
        program: the generator to run.
        perform: answers one request. An exception of it is thrown into the program, so that it can clean up.
        first: the first request, if the program was started already.
    """
    request = first
    try:
        if request is None:
            request = next(program)
        while True:
            try:
                answer = perform(request)
            except BaseException as error:
                request = program.throw(error)
            else:
                request = program.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def with_timing(
    program: Program[T],
    on_computed: Callable[[float, float], None],
    on_answered: Callable[[float, float], None] = lambda start, end: None,
) -> Program[T]:
    """The same program, which reports each (start, end) in which it computed or waited for an answer."""
    mark = time.perf_counter()
    try:
        request = next(program)
        while True:
            start, mark = mark, time.perf_counter()
            on_computed(start, mark)
            try:
                answer = yield request
            except BaseException as error:
                request = program.throw(error)
            else:
                start, mark = mark, time.perf_counter()
                on_answered(start, mark)
                request = program.send(answer)
    except StopIteration as done:
        on_computed(mark, time.perf_counter())
        return done.value  # type: ignore[no-any-return]


def loopback(program: Program[T]) -> T:
    """Run a program in a world of one rank: nothing is sent, each request is answered with its own data.

    Args:
        program: A program such as `exchanger.run_step(gradients, step, World(0, 1))`.

    Returns:
        What the program returns.
    """
    return drive(program, lambda request: request.answer_alone())


def with_step(program: Program[T], step: int) -> Program[T]:
    """The same program with `step` set on every request, for the meter and for error texts."""
    return (yield from fuse([program], step))[0]


def fuse(programs: Sequence[Program[T]], step: int | None = None) -> Program[list[T]]:
    """Run programs side by side; the requests of one round are merged into one request per kind and type.

    Args:
        programs: one program per layer, usually.
        step: set on every request, for the meter and for error texts; None keeps that of the requests.

    Returns:
        The results of the programs, in their order.
    """
    results, _ = yield from _fuse(programs, None, step)
    return results


def fuse_flagged(
    programs: Sequence[Program[T]], flag: bool | Callable[[], bool], step: int | None = None
) -> Program[tuple[list[T], bool]]:
    """`fuse` with a bad-step flag: one more bit in the first message. Returns (results, whether any rank raised it).

    A flag that is a function is read once all programs have made their first request.

    All ranks get the same answer. A NeighborExchange reaches neighbors only, so each one carries the flag, this rank's
    or one that was received: in programs that pass messages all around it reaches all ranks before they end. An
    exchange with `tolerate_missing` records the sources with a raised flag in its answer instead. If all exchanges do,
    a rank's flag concerns only itself and its neighbors, and the second result is False.
    """
    return _fuse(programs, flag if callable(flag) else lambda: flag, step)


_FLAG = -1  # key of the flag among the requests of a round; flags of scopes have keys below, programs 0, 1, 2 ...


def _fuse(
    programs: Sequence[Program[T]], read_flag: Callable[[], bool] | None, step: int | None
) -> Program[tuple[list[T], bool]]:
    flag: bool | None = None
    running = _FusedPrograms(programs)
    answers: dict[int, Any] = dict.fromkeys(range(len(programs)))
    raised, is_flag_sent = False, read_flag is None
    while answers:
        requests = running.resume(answers)
        if read_flag is not None and flag is None:
            flag = read_flag()
        flags: dict[int, Request] = {}
        if flag is not None and (requests or not is_flag_sent):
            flags = _flag_requests(list(requests.values()), flag or raised, is_flag_sent)
        is_flag_sent = is_flag_sent or _FLAG in flags or any(request.on_wire for request in requests.values())
        try:
            answers = yield from _merge(requests | flags, step, is_grouped=read_flag is not None)
        except BaseException as error:
            running.fail(list(requests), error)
            raise
        for key, request in flags.items():
            bad, missing = request.read_flag(answers.pop(key), bool(flag) or raised)
            raised |= bad
            if (scope := request.scope()) is not None:
                for i, other in requests.items():
                    if other.scope() == scope:
                        other.mark_missing(answers[i], missing)
    return [running.results[i] for i in range(len(programs))], raised


class _FusedPrograms:
    """Programs that run side by side, and the programs started by requests that expand."""

    def __init__(self, programs: Sequence[Program[Any]]) -> None:
        self.programs, self.results = list(programs), dict[int, Any]()
        self._waiting: dict[int, list[int]] = {}  # an expanded program -> the programs that wait for its result

    def resume(self, answers: Mapping[int, Any]) -> dict[int, Request]:
        """Send the answers; returns the next requests of the programs that have not ended.

        Requests that expand are answered here.
        """
        requests: dict[int, Request] = {}
        ready = dict(answers)
        while ready:
            i, answer = next(iter(ready.items()))
            del ready[i]
            try:
                requests[i] = self.programs[i].send(answer)
            except StopIteration as done:
                self.results[i] = done.value
                if i in self._waiting:
                    ready |= dict(zip(self._waiting.pop(i), done.value, strict=True))
            if not ready:
                ready = self._expand(requests)
        return requests

    def fail(self, indices: Sequence[int], error: BaseException) -> None:
        """Throw the error of a request into all programs that wait for an answer, and close them."""
        for i in indices:
            with suppress(BaseException):
                self.programs[i].throw(error)
            self.programs[i].close()

    def _expand(self, requests: dict[int, Request]) -> dict[int, Any]:
        """Start one program per batch of requests that expand; their programs wait for its result."""
        batches: dict[tuple[str, ...], list[int]] = {}
        for i, request in requests.items():
            if request.expands:
                batches.setdefault(request.merge_key(), []).append(i)
        started: dict[int, Any] = {}
        for batch in batches.values():
            started[len(self.programs)] = None
            self._waiting[len(self.programs)] = batch
            self.programs.append(requests[batch[0]].expand([requests[i] for i in batch]))
            for i in batch:
                del requests[i]
        return started


def _flag_requests(requests: Sequence[Request], flag: bool, is_flag_sent: bool) -> dict[int, Request]:
    """One flag to all ranks with the first request that goes to all; one per scope, for its neighbors."""
    collectives: list[Request] = []
    scopes: dict[str, list[Request]] = {}
    for request in requests:
        if not request.on_wire:
            continue
        if (scope := request.scope()) is None:
            collectives.append(request)
        else:
            scopes.setdefault(scope, []).append(request)
    flags: dict[int, Request] = {}
    if not is_flag_sent and (collectives or not requests):
        flags[_FLAG] = _flag_to_all(collectives, flag)
    for number, batch in enumerate(scopes.values(), 1):
        carrier = batch[0].make_flag(flag, batch)
        if carrier is not None:
            flags[_FLAG - number] = carrier
    return flags


def _flag_to_all(collectives: Sequence[Request], flag: bool) -> Request:
    """The flag in the form of a request that is sent anyway, so that it costs one element and no message."""
    for request in sorted(collectives, key=attrgetter("flag_order")):
        if (carrier := request.make_flag(flag, collectives)) is not None:
            return carrier
    return flag_alone(flag)


def _merge(requests: dict[int, Request], step: int | None, is_grouped: bool) -> Program[dict[int, Any]]:
    """Yield one request per merge key and split the answers. The order depends on the requests alone."""
    answers: dict[int, Any] = {}
    batches: dict[tuple[str, ...], dict[int, Request]] = {}
    for i, request in requests.items():
        batches.setdefault(request.merge_key(), {})[i] = request
    merged: dict[tuple[str, ...], Request] = {}
    for key in sorted(batches):
        batch = list(batches[key].values())
        request = batch[0] if len(batch) == 1 else batch[0].merge(batch)
        merged[key] = request if step is None else replace(request, step=step)  # type: ignore[type-var]
    alone = [([key], each) for key, each in merged.items()]
    for keys, request in _group(merged, step) if is_grouped else alone:
        answer = yield request
        for key, own in zip(keys, answer if len(keys) > 1 else [answer], strict=True):
            batch = list(batches[key].values())
            split = [own] if len(batch) == 1 else batch[0].split(batch, own)
            answers |= dict(zip(batches[key], split, strict=True))
    return dict(sorted(answers.items()))


def _group(merged: Mapping[tuple[str, ...], Request], step: int | None) -> list[tuple[list[tuple[str, ...]], Request]]:
    """The requests to yield, each with the keys of its members: those that can travel in one message come first.

    A long tensor goes behind them, so that a bad-step flag does not wait until the other rank has all of the tensor.
    """
    groupable = [key for key, request in merged.items() if request.group_payload() is not None]
    groupable += [key for key, request in merged.items() if request.group_tail() is not None][:1]
    if len(groupable) < 2:
        return [([key], request) for key, request in merged.items()]
    members = tuple([merged[key] for key in groupable])
    group = RequestGroup(members, members[0].step if step is None else step)
    return [(groupable, group)] + [([key], request) for key, request in merged.items() if key not in groupable]
