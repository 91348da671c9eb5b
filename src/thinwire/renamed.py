"""Public names that changed: an old one is refused with an error that says what it is called now.

One table for each kind of name. CHANGELOG.md has the same rows under "Renamed"; tests/unit/test_renamed.py compares the
two and uses every old name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

PARTS: dict[str, str] = {  # names in composition texts: "maxmin" -> "minmax"
    "ring_sum": "ring_all_reduce",
    "whole": "flatten",
    "server": "parameter_server",
    "adaptive": "quantile_threshold",
    "level_search": "level_threshold",
    "square": "energy_sampling",
    "greedy": "importance_topk",
    "stochastic": "importance_sampling",
    "maxmin": "minmax",
    "power2": "nearest_power2",
    "tt": "tensor_train",
}
SETTINGS: dict[str, str] = {  # of parts, by the part's present name: "switch.by" -> "controller"
    "rotating.pair": "equal_pairs",
    "parameter_server.down": "downlink",
    "gossip.own": "self_term",
    "ef.residual": "residual_dtype",
    "scam.residual": "residual_dtype",
    "scam.discharge": "reset_selected",
    "union.false_positives": "false_positive_rate",
    "sketch.false_positives": "false_positive_rate",
    "powersgd.halves": "alternate",
    "powersgd.against": "subtract",
    "switch.by": "controller",
    "adapt.by": "controller",
    "adapt.least": "min_factor",
    "adapt.most": "max_factor",
    "lgreco.statistics": "errors_from",
    "lgreco.look_at": "observed",
    "lgreco.exact": "exact_errors",
    "lgreco.calibrate": "calibration_steps",
    "lgreco.reference": "defaults_from",
    "lgreco.steps": "error_levels",
    "kmeans.statistics": "errors_from",
    "kmeans.look_at": "observed",
    "kmeans.exact": "exact_errors",
    "by_size.elements": "min_numel",
    "by_size.but": "exclude",
    "fixed.entries": "plan",
    "quantile_threshold.sample": "sample_fraction",
    "level_threshold.zeros": "sparsity",
    "importance_topk.among": "pool_factor",
    "importance_sampling.floor": "uniform_fraction",
    "nearest_power2.rule": "metric",
    "nearest_power2.ceiling": "max_exponent",
    "tensor_train.error": "max_error",
    "local.every": "sync_every",
    "local.exchange": "composition",
    "local.outer": "outer_optimizer",
    "local.fragments": "num_fragments",
    "local.delay": "fragment_sync_delay",
    "local.mixing": "fragment_update_alpha",
    "local.average_every": "full_average_every",
    "drift.above": "threshold",
    "drift.most": "max_period",
    "drift.look": "test_every",
    "adam.corrected": "bias_correction",
}
ARGUMENTS: dict[str, str] = {  # of functions of the API: "attach.small" -> "dense_below"
    "attach.small": "dense_below",
    "attach.check_every": "check_weights_every",
    "attach.most_bad_steps": "max_bad_steps",
    "local.small": "dense_below",
    "local.check_every": "check_weights_every",
    "local.most_bad_rounds": "max_bad_rounds",
    "moments.average.small": "dense_below",
    "moments.send.small": "dense_below",
    "moments.receive.small": "dense_below",
    "local.every": "sync_every",
    "local.exchange": "composition",
    "local.outer": "outer_optimizer",
    "local.fragments": "num_fragments",
    "local.delay": "fragment_sync_delay",
    "local.mixing": "fragment_update_alpha",
    "local.average_every": "full_average_every",
    "serve.exchange": "composition",
    "serve.down": "downlink_compression",
    "serve.bound": "max_lead",
    "serve.deadline": "round_timeout_s",
    "serve.store": "save",
    "serve.store_every": "save_every",
    "serve.max_frame": "max_frame_mib",
    "join.exchange": "composition",
    "join.down": "downlink_compression",
    "join.most_bad_rounds": "max_bad_rounds",
    "join.retry": "retry_timeout_s",
    "join.max_frame": "max_frame_mib",
}
FLAGS: dict[str, str] = {  # of commands: "serve --down" -> "--downlink-compression"
    "serve --exchange": "--composition",
    "serve --down": "--downlink-compression",
    "serve --max-frame": "--max-frame-mib",
    "join --exchange": "--composition",
    "join --down": "--downlink-compression",
    "join --max-frame": "--max-frame-mib",
    "serve --bound": "--max-lead",
    "serve --deadline": "--round-timeout",
    "serve --store": "--save",
    "serve --store-every": "--save-every",
    "join --share": "--shard",
    "join --most-bad-rounds": "--max-bad-rounds",
    "join --retry": "--retry-timeout",
    "run --full": "--published-size",
    "run --processes": "--jobs",
    "resume --processes": "--jobs",
    "bench ddp --no-peers": "--no-baselines",
}
COMMANDS: dict[str, str] = {"operators": "parts"}  # of the program
KEYS: dict[str, str] = {  # of the laboratory's files: "record_every" -> "log_every"; "task.x" in a table
    "about": "description",
    "record_every": "log_every",
    "small": "dense_below",
    "groups.labels": "methods",
    "groups.record_every": "log_every",
    "target.measure": "metric",
}


def hint(table: dict[str, str], name: str) -> str:
    """The end of an error about an unknown name: "; 'small' was renamed to 'dense_below'", or nothing."""
    new = table.get(name)
    return "" if new is None else f"; {name.rpartition('.')[2].rpartition(' ')[2]!r} was renamed to {new!r}"


def refuse_renamed_arguments(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator of the function that users know by this name: an old argument is a TypeError with the new name."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for argument in kwargs:
                if text := hint(ARGUMENTS, f"{name}.{argument}"):
                    raise TypeError(f"{name}() has no argument {argument!r}{text}")
            return function(*args, **kwargs)

        return call

    return decorate
