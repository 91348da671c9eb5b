"""Running programs: side by side as one (`fuse`), stamped with a step, or alone in a world of one (`loopback`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

from .requests import Program, Request, flag_alone

T = TypeVar("T")


def drive(program: Program[T], perform: Callable[[Request], Any], first: Request | None = None) -> T:
    """Run one program to its end; `perform` answers its requests. `first`: what it asked for when it was begun.

    A failed request is thrown into its program, so that it can clean up.
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


def timed(
    program: Program[T],
    computed: Callable[[float, float], None],
    answered: Callable[[float, float], None] = lambda asked, ended: None,
) -> Program[T]:
    """The same program; it reports every span of time in which it computed, and in which it waited for an answer."""
    mark = time.perf_counter()
    try:
        request = next(program)
        while True:
            began, mark = mark, time.perf_counter()
            computed(began, mark)
            try:
                answer = yield request
            except BaseException as error:
                request = program.throw(error)
            else:
                asked, mark = mark, time.perf_counter()
                answered(asked, mark)
                request = program.send(answer)
    except StopIteration as done:
        computed(mark, time.perf_counter())
        return done.value  # type: ignore[no-any-return]


def loopback(program: Program[T]) -> T:
    """Run a program in a world of one: nothing is sent, every request is answered with what it asked."""
    return drive(program, lambda request: request.answer_alone())


def stamped(program: Program[T], step: int) -> Program[T]:
    """The same program with its step written on every request, for the meter and for error texts."""
    return (yield from fuse([program], step))[0]


def fuse(programs: Sequence[Program[T]], step: int | None = None) -> Program[list[T]]:
    """Run programs side by side; the requests of one round travel as one request per kind and type.

    step: is written on every request, for the meter and for error texts; without, it is what the requests say.
    """
    results, _ = yield from _fuse(programs, None, step)
    return results


def fuse_flagged(programs: Sequence[Program[T]], flag: bool, step: int | None = None) -> Program[tuple[list[T], bool]]:
    """`fuse`, and one more bit in its first message: did any rank raise its flag? All ranks get the same answer.

    A Swap reaches partners only. So each carries the flag, of this rank or of any that it has heard of: in programs
    that go all round it reaches all ranks before they end. One that is `forgiving` tells its program which sources had
    raised theirs, and no other: where there are none but those, a rank's own flag is its own affair, and the answer
    is False.
    """
    return _fuse(programs, flag, step)


_FLAG = -1  # the flag's place among the requests of a round; those for each scope are below, programs have 0, 1, 2 ...


def _fuse(programs: Sequence[Program[T]], flag: bool | None, step: int | None) -> Program[tuple[list[T], bool]]:
    running = _Running(programs)
    answers: dict[int, Any] = dict.fromkeys(range(len(programs)))
    raised, told = False, flag is None  # told: all ranks know of this rank's flag
    while answers:
        asked = running.resume(answers)
        flags: dict[int, Request] = {}
        if flag is not None and (asked or not told):
            flags = _flag_requests(list(asked.values()), flag or raised, told)
        told = told or _FLAG in flags or any(request.on_wire for request in asked.values())
        try:
            answers = yield from _merge(asked | flags, step)
        except BaseException as error:
            running.fail(list(asked), error)
            raise
        for place, request in flags.items():
            bad, absent = request.read_flag(answers.pop(place), flag or raised)
            raised |= bad
            if (scope := request.scope()) is not None:
                for i, other in asked.items():
                    if other.scope() == scope:
                        other.leave_out(answers[i], absent)
    return [running.results[i] for i in range(len(programs))], raised


class _Running:
    """Programs side by side, and those that were begun for several of them together."""

    def __init__(self, programs: Sequence[Program[Any]]) -> None:
        self.programs, self.results = list(programs), dict[int, Any]()
        self._for: dict[int, list[int]] = {}  # a program for several: those that wait for it

    def resume(self, answers: Mapping[int, Any]) -> dict[int, Request]:
        """What they ask for next; some have ended. Requests that expand are answered here."""
        asked: dict[int, Request] = {}
        ready = dict(answers)
        while ready:
            i, answer = next(iter(ready.items()))
            del ready[i]
            try:
                asked[i] = self.programs[i].send(answer)
            except StopIteration as done:
                self.results[i] = done.value
                if i in self._for:
                    ready |= dict(zip(self._for.pop(i), done.value, strict=True))
            if not ready:
                ready = self._expand(asked)
        return asked

    def fail(self, places: Sequence[int], error: BaseException) -> None:
        """Throw a failed request into all that wait for an answer; what they make of it changes nothing."""
        for i in places:
            with suppress(BaseException):
                self.programs[i].throw(error)
            self.programs[i].close()

    def _expand(self, asked: dict[int, Request]) -> dict[int, Any]:
        """Programs that answer requests inside `fuse`; those that asked wait for them."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for i, request in asked.items():
            if request.expands:
                groups.setdefault(request.merge_key(), []).append(i)
        begun: dict[int, Any] = {}
        for group in groups.values():
            begun[len(self.programs)] = None
            self._for[len(self.programs)] = group
            self.programs.append(asked[group[0]].expand([asked[i] for i in group]))
            for i in group:
                del asked[i]
        return begun


def _flag_requests(asked: Sequence[Request], flag: bool, told: bool) -> dict[int, Request]:
    """One to all ranks with the first request that goes to all; one with each scope, since that goes to partners."""
    collectives: list[Request] = []
    scopes: dict[str, list[Request]] = {}
    for request in asked:
        if not request.on_wire:
            continue
        if (scope := request.scope()) is None:
            collectives.append(request)
        else:
            scopes.setdefault(scope, []).append(request)
    flags: dict[int, Request] = {}
    if not told and (collectives or not asked):
        flags[_FLAG] = _flag_for_all(collectives, flag)
    for at, group in enumerate(scopes.values(), 1):
        carried = group[0].make_flag(flag, group)
        if carried is not None:
            flags[_FLAG - at] = carried
    return flags


def _flag_for_all(collectives: Sequence[Request], flag: bool) -> Request:
    """In the form of a request that is being sent anyway, so that it costs an element and no message."""
    for request in sorted(collectives, key=attrgetter("flag_order")):
        if (made := request.make_flag(flag, collectives)) is not None:
            return made
    return flag_alone(flag)


def _merge(asked: dict[int, Request], step: int | None) -> Program[dict[int, Any]]:
    """One request per merge key; the answers cut up again. The order depends on the requests alone."""
    answers: dict[int, Any] = {}
    groups: dict[tuple[str, ...], dict[int, Request]] = {}
    for i, request in asked.items():
        groups.setdefault(request.merge_key(), {})[i] = request
    for key in sorted(groups):
        group = list(groups[key].values())
        request = group[0] if len(group) == 1 else group[0].merge(group)
        answer = yield request if step is None else replace(request, step=step)  # type: ignore[type-var]
        split = [answer] if len(group) == 1 else group[0].split(group, answer)
        answers |= dict(zip(groups[key], split, strict=True))
    return dict(sorted(answers.items()))
