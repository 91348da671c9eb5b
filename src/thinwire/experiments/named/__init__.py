"""One file per published or built-in experiment. Each gives a result that tables and reports can read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Progress = Callable[[str, int, int], None]

SUMMARIES = {
    "demo": "dense, Random-k, Top-k, EF(Top-k), QSGD, EF(sign) on 10 and 2 workers, in lockstep and on real processes",
    "e1-topk": "S0's mushrooms protocol with Top-k and powers of two: iterations and legacy bits, as published",
}


def run_named(name: str, progress: Progress, command: str) -> dict[str, Any]:
    """The result of a named experiment; modules are imported here, because they need torch."""
    if name == "e1-topk":
        from .e1 import run

        return run(progress, command)
    from ..runner import run_experiment
    from .demo import DEMO

    return run_experiment(DEMO, progress, command)
