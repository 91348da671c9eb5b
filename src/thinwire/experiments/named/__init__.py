"""One file per published or built-in experiment. Each gives a result that tables and reports can read."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

Progress = Callable[[str, int, int], None]

SUMMARIES = {
    "demo": "dense, Random-k, Top-k, EF(Top-k), QSGD, EF(sign) on 10 and 2 workers, in lockstep and on real processes",
    "e1": "S0's mushrooms protocol: TopK, RandK, importance operators, with and without powers of two (10 minutes)",
    "e1b": "E1's importance: its overlap with the gradient, and what it makes of features that are noise",
    "e1c": "E1's operators on a quadratic of condition 1000",
    "e5": "low-rank and other operators, with and without EF21, on 1 worker, 10 iid and 10 label-sorted (5 minutes)",
    "sketch": "bytes of count sketches, unions, gathers and two hops against workers, by formula and metered",
}


def run_named(name: str, progress: Progress, command: str) -> dict[str, Any]:
    """The result of a named experiment; modules are imported here, because they need torch."""
    if name == "demo":
        from ..runner import run_experiment
        from .demo import DEMO

        return run_experiment(DEMO, progress, command)
    return import_module(f".{name}", __name__).run(progress, command)  # type: ignore[no-any-return]
