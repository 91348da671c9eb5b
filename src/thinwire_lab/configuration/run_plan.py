"""The jobs of an experiment, which are independent of each other, and how their results are combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Result = dict[str, Any]  # plain JSON
Finish = Callable[[list[Result]], Mapping[str, Any]]


@dataclass(frozen=True)
class Job:
    """One call of `function(driver, argument, on_progress)` on each of `ranks` processes.

    Args:
        key: name of the job's folder.
        function: "module:name" of the function; its argument and its result are JSON.
        argument: passed to the function, with the job's folder added.
        title: shown while the job runs.
        ranks: number of processes. Jobs with more than one run alone, because they are timed.
        gather: "module:name" of the function that makes one result of all ranks' results; "": rank 0's is the result.
        link: rate of each rank's link in the testbed, such as "100mbit", or "none".
    """

    key: str
    function: str
    argument: Mapping[str, Any]
    title: str = ""
    ranks: int = 1
    gather: str = ""
    link: str = "none"

    @property
    def runs_alone(self) -> bool:
        return self.ranks > 1


@dataclass(frozen=True)
class RunPlan:
    """A named list of jobs.

    Args:
        name: default name of the run's folder.
        head: entries of the result file that are known in advance: title, description, config.
        jobs: all jobs; the first `runs` of them are training runs with curves, which the report draws.
        finish: makes the remaining entries of the result file (tables, figures, checks) from all results.
        runs: number of training runs among the jobs.
    """

    name: str
    head: Mapping[str, Any]
    jobs: Sequence[Job]
    finish: Finish = field(default=lambda results: {})
    runs: int = 0
