"""What an experiment comes to: jobs that know nothing of each other, and what is made of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Result = dict[str, Any]  # plain JSON
Finish = Callable[[list[Result]], Mapping[str, Any]]


@dataclass(frozen=True)
class Job:
    """One thing to be done by processes of its own: `function(driver, argument, tell)` on each of `ranks`.

    function: "module:name"; argument and results are JSON. With a `gather`, "module:name" as well, the parent makes one
    result out of those of all ranks; else rank 0's is the result. link: a rate such as "100mbit" that the testbed gives
    to each rank, or "none". Jobs of more than one rank run alone, so that their clocks tell the truth.
    """

    key: str  # names the job's folder
    function: str
    argument: Mapping[str, Any]
    title: str = ""
    ranks: int = 1
    gather: str = ""
    link: str = "none"

    @property
    def alone(self) -> bool:
        return self.ranks > 1


@dataclass(frozen=True)
class RunPlan:
    """A named list of jobs. `finish` adds to the stored result what all results show together: tables, figures, checks.

    head: what the result file says before any run: title, about, config. `runs` tells how many of the results, from the
    first on, are runs, with curves, that the report draws itself.
    """

    name: str
    head: Mapping[str, Any]
    jobs: Sequence[Job]
    finish: Finish = field(default=lambda results: {})
    runs: int = 0
