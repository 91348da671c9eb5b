"""A law is a plain function of a part; with its cases it is a list of tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., None])


@dataclass(frozen=True)
class Law:
    """One law in one of its cases. Call it with a part; an AssertionError says where the part breaks it."""

    check: Callable[..., None]
    case: Mapping[str, Any]

    def __call__(self, part: Any) -> None:
        self.check(part, **self.case)

    def __str__(self) -> str:
        return "-".join([self.check.__name__, *map(str, self.case.values())])


def law(suite: list[Law], **cases: Sequence[Any]) -> Callable[[F], F]:
    """Add a function to a suite, once for each combination of its cases; the function stays as it is."""

    def add(check: F) -> F:
        for values in itertools.product(*cases.values()):
            suite.append(Law(check, dict(zip(cases, values, strict=True))))
        return check

    return add


def check_all(suite: Sequence[Law], part: Any) -> None:
    for each in suite:
        each(part)
