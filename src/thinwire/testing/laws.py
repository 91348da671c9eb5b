"""Laws: functions of a part that raise AssertionError; a suite is a list of laws, one for each combination of cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., None])


@dataclass(frozen=True)
class Law:
    """One law with one combination of its cases.

    Call it with a part; it raises AssertionError if the part breaks the law. str(law) is an id for pytest.
    """

    check: Callable[..., None]
    case: Mapping[str, Any]

    def __call__(self, part: Any) -> None:
        self.check(part, **self.case)

    def __str__(self) -> str:
        return "-".join([self.check.__name__, *map(str, self.case.values())])


def law(suite: list[Law], **cases: Sequence[Any]) -> Callable[[F], F]:
    """Decorator: add a function to a suite, once for each combination of its cases."""

    def add(check: F) -> F:
        for values in itertools.product(*cases.values()):
            suite.append(Law(check, dict(zip(cases, values, strict=True))))
        return check

    return add


def check_all(suite: Sequence[Law], part: Any) -> None:
    """Run all laws of a suite."""
    for each in suite:
        each(part)
