"""Checks whether a composition converges for its layers: an error, or a warning with the remedy."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..catalog import part_text
from ..core import Aggregator, Capability, Compressor, IncompatibleParts, Key, TensorSpec, has, parts_of, topology_of
from .connections import rank_or_zero

NEARLY_EXACT = 0.99  # a compressor with such a delta loses no more than rounding does
SAMPLE_NUMEL = 1 << 16  # elements of the tensor on which a compressor's error is measured


def check_soundness(
    caller: str,
    layers: Sequence[TensorSpec],
    rules: Mapping[str, Aggregator[Any]],
    group: Any = None,
    bias: bool = True,
) -> None:
    """Raise for EF21 around a compressor that is not a contraction; warn of a biased compressor without a memory.

    Args:
        caller: The function that errors and warnings name.
        layers: The specs of the layers.
        rules: The aggregators of the layers.
        group: Its rank 0 emits the warnings (`warnings.warn`).
        bias: Whether to warn of bias.

    Raises:
        IncompatibleParts: The state of EF21 would grow without bound.
    """
    shared: dict[int, tuple[Aggregator[Any], list[TensorSpec]]] = {}  # the layers of a pattern share one object
    for layer in layers:
        shared.setdefault(id(rules[layer.name]), (rules[layer.name], []))[1].append(layer)
    found: dict[str, None] = {}  # ordered, each text once
    for rule, own in shared.values():
        found |= dict.fromkeys([*_check_ef21(caller, rule, own), *(_check_bias(caller, rule, own) if bias else ())])
    for text in found if rank_or_zero(group) == 0 else ():
        warnings.warn(text, stacklevel=_user_stacklevel())


def _user_stacklevel() -> int:
    """Number of calls from the warning up to the user's code."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("thinwire."):
        level, frame = level + 1, frame.f_back
    return level


def _check_ef21(caller: str, rule: Aggregator[Any], layers: Sequence[TensorSpec]) -> Iterator[str]:
    """EF21 adds C(difference) to its state in each step; if the error exceeds the difference, the state grows."""
    for memory in parts_of(rule):
        if not has(memory, Capability.SENDS_DIFFERENCES):
            continue
        whole = any(has(part, Capability.FLATTENS_LAYERS) for part in parts_of(memory))
        specs = [_concatenate(layers)] if whole else layers
        for compressor in (part for part in parts_of(memory) if isinstance(part, Compressor)):
            omegas = [_expansion(compressor, spec) for spec in specs]
            worst = max(range(len(omegas)), key=omegas.__getitem__)
            if omegas[worst] <= 1:
                continue
            spec, text = specs[worst], part_text(compressor)
            problem = (
                f"{caller}: {part_text(memory)}: EF21 needs a contraction, and {text} is unbiased with a variance of "
                f"up to omega = {omegas[worst]:.3g} > 1 for {spec.name} {list(spec.shape)}"
            )
            remedy = f"use ef({text}), or a contraction inside ef21: topk(...), or scaled=false where {text} has it"
            if _measured_error(compressor, spec) > 1:
                raise IncompatibleParts(f"{problem}: its state would grow without bound; {remedy}")
            yield f"{problem}; on normally distributed tensors it contracts, on others it may not: {remedy}"


def _concatenate(layers: Sequence[TensorSpec]) -> TensorSpec:
    return TensorSpec("all layers", (sum(layer.numel for layer in layers),), layers[0].dtype)


def _expansion(compressor: Compressor, spec: TensorSpec) -> float:
    """Return omega if the contract promises nothing else, else 0."""
    promise = compressor.contract(spec)
    return 0.0 if promise.delta is not None or promise.omega is None else promise.omega


def _measured_error(compressor: Compressor, spec: TensorSpec) -> float:
    """Return |x - C(x)|^2 / |x|^2 for one normal random x of the layer's shape, or of fewer rows."""
    first, *others = spec.shape or (1,)
    rows = max(1, min(first, SAMPLE_NUMEL // max(1, math.prod(others))))
    sample = TensorSpec("sample", (rows, *others))
    tensor = torch.randn(sample.shape, generator=torch.Generator().manual_seed(0))
    decoded = compressor.decode(compressor.encode(tensor, Key(0)), sample, Key(0))
    return float((tensor - decoded).square().sum() / tensor.square().sum())


def _check_bias(caller: str, rule: Aggregator[Any], layers: Sequence[TensorSpec]) -> Iterator[str]:
    inside = list(parts_of(rule))
    if any(has(part, Capability.CORRECTS_ERROR) for part in inside):
        return
    for part in inside:
        if any(_is_biased(part, spec) for spec in layers):
            yield (
                f"{caller}: {part_text(rule)} is biased and has no memory: what it does not send is lost in each step, "
                f"and training may not converge; wrap it in error feedback, ef({part_text(rule)})"
            )
            return


def _is_biased(part: Any, spec: TensorSpec) -> bool:
    """By its contract: not unbiased, and it omits coordinates or loses more than rounding does."""
    if not isinstance(part, Compressor):
        return has(part, Capability.UNBOUNDED_BIAS)
    promise = part.contract(spec)
    if promise.omega is not None:
        return False
    if promise.delta is not None:
        return promise.delta < NEARLY_EXACT
    return has(part, Capability.SELECTS_COORDINATES) or has(part, Capability.UNBOUNDED_BIAS)


def refuse_gossip(rules: Mapping[str, Aggregator[Any]], caller: str = "attach") -> None:
    """Raise IncompatibleParts for gossip: DDP requires equal replicas."""
    for name, rule in rules.items():
        if (topology := topology_of(rule)) is not None:
            raise IncompatibleParts(
                f"{caller}: {name}: {part_text(rule)} averages among neighbors ({part_text(topology)}), so ranks get "
                "different results, and DDP needs equal replicas; use thinwire.local(model, optimizer, composition=...)"
            )
