"""Optimizer state between ranks: `average`, `send` and `receive` Adam's moments; `advise` on a composition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .catalog import DENSE_BELOW
from .core import check_flag, check_int, check_timeout
from .drivers.meter import Traffic
from .integrations.connections import check_group
from .integrations.moments_handle import MomentsHandle, transfer
from .integrations.soundness import check_soundness
from .optimizer_state import (
    AdamMoments,
    Advice,
    MomentsAveraging,
    MomentsConfig,
    MomentsTransfer,
    PairAggregator,
    PairCompressor,
    advise,
    apply_floor,
    build_pair_aggregator,
    build_pair_compressor,
    compute_block_means,
    max_update,
    moments_to_text,
    name_shard,
    parse_moments,
    resolve_moments,
    restore_v,
    transform_v,
)
from .renamed import refuse_renamed_arguments

__all__ = [
    "average", "send", "receive", "advise", "Advice",
    "MomentsConfig", "parse_moments", "resolve_moments", "moments_to_text", "AdamMoments", "name_shard",
    "MomentsAveraging", "MomentsTransfer", "PairCompressor", "PairAggregator",
    "build_pair_aggregator", "build_pair_compressor",
    "transform_v", "restore_v", "max_update", "apply_floor", "compute_block_means",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


@refuse_renamed_arguments("moments.average")
def average(
    optimizer: torch.optim.Optimizer,
    composition: str | MomentsConfig = "dense()",
    *,
    dense_below: int = DENSE_BELOW,
    seed: int = 0,
    timeout_s: float = 60.0,
    group: Any = None,
    now: bool = True,
) -> MomentsHandle:
    """Replace the moments of each rank's Adam or AdamW by their average over the ranks.

    All ranks call this with the same arguments, between the same steps. The handle averages again later
    (`handle.average()`), with the memory of the composition.

    Args:
        optimizer: A `torch.optim.Adam` or `AdamW`, without `amsgrad`.
        composition: What is sent: a composition text such as `"uniform(bits=8)"` or `"ef21(topk(density=0.1))"`, or
            one that changes the rules that keep v valid, such as `'moments(uniform(bits=4), transmit="log")'`.
        dense_below: Moments of layers with fewer elements, and those of vectors, are sent dense.
        seed: Seed of all random choices; the same on all ranks.
        timeout_s: Seconds after which a silent rank counts as lost.
        group: Process group of the ranks that average; None is the default group.
        now: Average at once. With False only the handle is made, for example to load a state first.

    Returns:
        The handle: `average()`, `report()`, `state_dict()`, `load_state_dict()`, `close()`.

    Raises:
        CompositionError: An argument is not valid, or the optimizer is not an Adam.
        IncompatibleParts: The composition cannot carry m and v together.
        ConfigMismatch: Ranks passed different arguments, or have different parameters.
        NonFiniteError: Some rank's moments have a NaN or an infinity; no rank's moments have changed.

    Example:
        ```python
        with thinwire.moments.average(optimizer, "uniform(bits=8)") as handle:
            print(handle.report())
        ```
    """
    _check_options(dense_below, seed, timeout_s, group)
    check_flag("moments", "now", now)
    moments = resolve_moments(composition)
    averaging = MomentsAveraging(AdamMoments(optimizer), moments, dense_below=dense_below, seed=seed)
    matrices = (spec for spec in averaging.adam.layers if len(spec.shape) > 2 and spec.numel >= 2 * dense_below)
    layers = [replace(spec, shape=spec.shape[1:]) for spec in matrices]
    check_soundness("moments", layers, dict.fromkeys((s.name for s in layers), moments.composition), group, bias=False)
    settings = {"moments": moments_to_text(moments), "setting": {"dense_below": dense_below, "seed": seed}}
    handle = MomentsHandle(averaging, settings, timeout_s, group)
    if now:
        handle.average()
    return handle


@refuse_renamed_arguments("moments.send")
def send(
    optimizer: torch.optim.Optimizer,
    composition: str | MomentsConfig = "dense()",
    *,
    to: int,
    parameters: Iterable[Tensor] | None = None,
    dense_below: int = DENSE_BELOW,
    seed: int = 0,
    timeout_s: float = 60.0,
    group: Any = None,
) -> Traffic:
    """Send an Adam's moments and step counters to another rank, which calls `receive`.

    Only the two ranks take part. Both pass the same composition, dense_below and seed.

    Args:
        optimizer: A `torch.optim.Adam` or `AdamW`, without `amsgrad`.
        composition: A compressor such as `"uniform(bits=8)"`, or `"dense()"`.
        to: Rank of the receiver in the group.
        parameters: The parameters of the moments to send, such as those of a shard; None: all that want gradients.
        dense_below: Moments of layers with fewer elements, and those of vectors, are sent dense.
        seed: Seed of all random choices.
        timeout_s: Seconds after which the silent receiver counts as lost.
        group: Process group of both ranks; None is the default group.

    Returns:
        The bytes that this rank sent and received.

    Raises:
        CompositionError: An argument is not valid, there is no process group, or the optimizer is not an Adam.
        IncompatibleParts: The composition has a memory or needs several ranks.
        ConfigMismatch: The receiver passed other settings, or its parameters have other shapes.
    """
    return _transfer(optimizer, composition, parameters, dense_below, seed, timeout_s, group, to, sends=True)


@refuse_renamed_arguments("moments.receive")
def receive(
    optimizer: torch.optim.Optimizer,
    composition: str | MomentsConfig = "dense()",
    *,
    source: int,
    parameters: Iterable[Tensor] | None = None,
    dense_below: int = DENSE_BELOW,
    seed: int = 0,
    timeout_s: float = 60.0,
    group: Any = None,
) -> Traffic:
    """Receive the moments and step counters that another rank sends by `send`, and store them in the optimizer.

    Args:
        optimizer: A `torch.optim.Adam` or `AdamW`, without `amsgrad`. It need not have made a step.
        composition: The same as the sender's.
        source: Rank of the sender in the group.
        parameters: The parameters that get the moments, with the sender's shapes in the sender's order; None: all that
            want gradients.
        dense_below: The same as the sender's.
        seed: The same as the sender's.
        timeout_s: Seconds after which the silent sender counts as lost.
        group: Process group of both ranks; None is the default group.

    Returns:
        The bytes that this rank sent and received.

    Raises:
        CompositionError: An argument is not valid, there is no process group, or the optimizer is not an Adam.
        ConfigMismatch: The sender passed other settings, or its parameters have other shapes.
    """
    return _transfer(optimizer, composition, parameters, dense_below, seed, timeout_s, group, source, sends=False)


def _transfer(
    optimizer: torch.optim.Optimizer,
    composition: str | MomentsConfig,
    parameters: Iterable[Tensor] | None,
    dense_below: int,
    seed: int,
    timeout_s: float,
    group: Any,
    other: int,
    sends: bool,
) -> Traffic:
    _check_options(dense_below, seed, timeout_s, group)
    adam = AdamMoments(optimizer, name_shard(parameters, optimizer))
    moments_transfer = MomentsTransfer(adam, resolve_moments(composition), dense_below=dense_below, seed=seed)
    return transfer(moments_transfer, other, sends, timeout_s, group)


def _check_options(dense_below: Any, seed: Any, timeout_s: Any, group: Any) -> None:
    check_int("moments", "dense_below", dense_below, 0, "0 compresses all matrices")
    check_int("moments", "seed", seed)
    check_timeout("moments", "timeout_s", timeout_s)
    check_group("moments", group)
