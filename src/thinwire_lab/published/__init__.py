"""One file per published or built-in experiment. Each gives a plan."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from ..configuration.plan import Plan

if TYPE_CHECKING:
    from ..configuration.selecting import Selection

SUMMARIES = {
    "demo": "the main job in small: an MLP on real processes, accuracy against bytes, links thin and fast (1 minute)",
    "tour": "every part of the catalog on 10, 4 and 2 workers, in lockstep and on real processes (3 minutes)",
    "e1": "S0's mushrooms protocol: TopK, RandK, importance operators, with and without powers of two (10 minutes)",
    "e1b": "E1's importance: its overlap with the gradient, and what it makes of features that are noise",
    "e1c": "E1's operators on a quadratic of condition 1000",
    "e2": "S0's importance operators on CIFAR-10, 20 % kept: a slim ResNet, 10,000 images (15 minutes)",
    "e3": "TopK and ImpK with EF and SCAM on CIFAR-10, 1 % kept: a slim ResNet, 10,000 images (20 minutes)",
    "e4": "TopK and ImpK with EF and SCAM on WikiText-2, 1 % kept: a small GPT, a million tokens (30 minutes)",
    "e5": "low-rank and other operators, with and without EF21, on 1 worker, 10 iid and 10 label-sorted (5 minutes)",
    "e6": "S2's ways to send Adam's moments: errors, times, bytes for 1 to 64 hosts, then local AdamW (35 minutes)",
    "e7": "S3's ten ways to talk less often, with fewer: CIFAR-10 and -100, 16 to 60 workers, 4 processes (50 minutes)",
    "e8": "L-GreCo and its rivals on CIFAR-100 and WikiText-2: quality against bytes, mixtures, step times (2 hours)",
    "diloco": "DiLoCo on a small GPT: dense, 4 bits, sparse with 2 bits, streamed: loss against bytes (5 minutes)",
    "federated": "64 unreliable clients: 20 % drop out of each round, 5 % send malformed updates (15 seconds)",
    "sketch": "bytes of count sketches, unions, gathers and two hops against workers, by formula and metered",
}


def named_plan(
    name: str, full: bool = False, data: str | None = None, seeds: tuple[int, ...] = (), some: Selection | None = None
) -> Plan:
    """Modules are imported here, because they need torch. full: the published size; data: the folder data are in.

    seeds: instead of the experiment's own, where those may be chosen; some: only these methods and groups, likewise.
    """
    plan = import_module(f".{name}", __name__).plan
    options: dict[str, Any] = ({"seeds": seeds} if seeds else {}) | ({"some": some} if some else {})
    reasons = {
        "seeds": f"--seeds: {name} has its own; e8 and experiments out of files take others",
        "some": f"--methods, --groups: {name} runs as a whole; e5, e7 and experiments out of files can run in part",
    }
    for option in options:
        if option not in signature(plan).parameters:
            from ..tables import ConfigError  # needs torch, too

            raise ConfigError(reasons[option])
    return plan(full, data, **options)  # type: ignore[no-any-return]
