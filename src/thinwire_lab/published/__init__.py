"""Named experiments: reproductions of published protocols and built-in demonstrations. Each module builds a plan."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from ..configuration.run_plan import RunPlan

if TYPE_CHECKING:
    from ..configuration.selection import Selection

SUMMARIES = {
    "demo": "an MLP on real processes: accuracy against bytes, step times on thin and fast links (1 min)",
    "tour": "every part of the catalog on 10, 4 and 2 workers, in lockstep and on real processes (3 min)",
    "importance-mushrooms": "Khafizov & Beznosikov, 2024, mushrooms: Top-k, Random-k, importance compressors (10 min)",
    "importance-overlap": "the importance vector: its overlap with the gradient, and features that are noise (3 min)",
    "importance-quadratic": "the importance compressors on a quadratic of condition 1000 (3 min)",
    "importance-cifar10": "importance compressors on CIFAR-10, 20 % kept: a slim ResNet, 10,000 images (15 min)",
    "impk-cifar10": "Top-k and ImpK with EF and SCAM on CIFAR-10, 1 % kept: a slim ResNet, 10,000 images (20 min)",
    "impk-wikitext2": "Top-k and ImpK with EF and SCAM on WikiText-2, 1 % kept: a small GPT, a million tokens (30 min)",
    "low-rank-ef21": "low-rank and other compressors, with and without EF21: 1 worker, 10 iid, 10 label-sorted (5 min)",
    "optimizer-moments": "compressing Adam's moments: errors, times, bytes for 1 to 64 hosts, local AdamW (35 min)",
    "local-sgd-gossip": "Local-SGD, gossip, sparsification: CIFAR-10 and -100, 16 to 60 workers, 4 processes (50 min)",
    "layerwise-adaptive": "L-GreCo and other controllers, CIFAR-100 and WikiText-2: quality, bytes, step times (2 h)",
    "diloco": "DiLoCo on a small GPT: dense, 4 bits, sparse with 2 bits, streaming: loss against bytes (5 min)",
    "federated": "64 unreliable clients: 20 % drop out of each round, 5 % send malformed updates (15 s)",
    "sketch": "bytes of count sketches, unions, gathers and two hops against workers, by formula and metered",
}
ALIASES = {  # short codes that `thinwire run` and `thinwire list` accept as well
    "e1": "importance-mushrooms",
    "e1b": "importance-overlap",
    "e1c": "importance-quadratic",
    "e2": "importance-cifar10",
    "e3": "impk-cifar10",
    "e4": "impk-wikitext2",
    "e5": "low-rank-ef21",
    "e6": "optimizer-moments",
    "e7": "local-sgd-gossip",
    "e8": "layerwise-adaptive",
}


def import_experiment(name: str) -> Any:
    """Import the module of an experiment, by name or alias. Imported late, because it needs torch."""
    return import_module(f".{ALIASES.get(name, name).replace('-', '_')}", __name__)


def build_named_plan(
    name: str, full: bool = False, data: str | None = None, seeds: tuple[int, ...] = (), some: Selection | None = None
) -> RunPlan:
    """Build the plan of a named experiment.

    Args:
        name: a key of SUMMARIES or of ALIASES.
        full: the published size instead of the one for two cores.
        data: the folder that holds the data sets.
        seeds: used instead of the experiment's own, where it accepts seeds.
        some: run only these methods and groups, where the experiment accepts a selection.

    Raises:
        ConfigError: the experiment does not accept `seeds` or `some`.
    """
    build_plan = import_experiment(name).build_plan
    options: dict[str, Any] = ({"seeds": seeds} if seeds else {}) | ({"some": some} if some else {})
    reasons = {
        "seeds": f"--seeds: {name} has fixed seeds; layerwise-adaptive and experiments from files accept others",
        "some": f"--methods, --groups: {name} runs as a whole; low-rank-ef21, local-sgd-gossip and experiments from "
        "files can run in part",
    }
    for option in options:
        if option not in signature(build_plan).parameters:
            from ..tables import ConfigError  # needs torch, too

            raise ConfigError(reasons[option])
    return build_plan(full, data, **options)  # type: ignore[no-any-return]
