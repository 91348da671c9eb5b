"""Compositions that do not converge for the layers they are given: refused, or one warning with the remedy."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..catalog import part_text
from ..core import Aggregator, Capability, Compressor, IncompatibleParts, Key, TensorSpec, has, parts_of, topology_of
from .connections import rank_in

NEARLY_EXACT = 0.99  # a delta from which on the loss is like that of rounding
SAMPLED = 1 << 16  # elements of the tensor on which a compressor's error is measured


def check_soundness(
    caller: str,
    layers: Sequence[TensorSpec],
    rules: Mapping[str, Aggregator[Any]],
    group: Any = None,
    bias: bool = True,
) -> None:
    """Refuse EF21 around what is no contraction; warn (`warnings.warn`) of a biased compressor without a memory.

    group: its rank 0 gives the warnings. bias: whether a bias matters.
    """
    shared: dict[int, tuple[Aggregator[Any], list[TensorSpec]]] = {}  # the layers of a pattern share one object
    for layer in layers:
        shared.setdefault(id(rules[layer.name]), (rules[layer.name], []))[1].append(layer)
    found: dict[str, None] = {}  # in order, each text once
    for rule, own in shared.values():
        found |= dict.fromkeys([*_about_ef21(caller, rule, own), *(_about_bias(caller, rule, own) if bias else ())])
    for text in found if rank_in(group) == 0 else ():
        warnings.warn(text, stacklevel=_callers())


def _callers() -> int:
    """How many calls above the warning the user's own code is."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("thinwire."):
        level, frame = level + 1, frame.f_back
    return level


def _about_ef21(caller: str, rule: Aggregator[Any], layers: Sequence[TensorSpec]) -> Iterator[str]:
    """EF21 adds C(difference) to its state at each step: an error above the difference itself makes it grow."""
    for memory in parts_of(rule):
        if not has(memory, Capability.SENDS_DIFFERENCES):
            continue
        whole = any(has(part, Capability.FLATTENS_LAYERS) for part in parts_of(memory))
        specs = [_as_one(layers)] if whole else layers
        for compressor in (part for part in parts_of(memory) if isinstance(part, Compressor)):
            omegas = [_expansion(compressor, spec) for spec in specs]
            worst = max(range(len(omegas)), key=omegas.__getitem__)
            if omegas[worst] <= 1:
                continue
            spec, text = specs[worst], part_text(compressor)
            about = (
                f"{caller}: {part_text(memory)}: EF21 needs a contraction, and {text} is unbiased with a variance of "
                f"up to omega = {omegas[worst]:.3g} > 1 for {spec.name} {list(spec.shape)}"
            )
            remedy = f"use ef({text}), or a contraction inside ef21: topk(...), or scaled=false where {text} has it"
            if _measured_error(compressor, spec) > 1:
                raise IncompatibleParts(f"{about}: its state would grow without bound; {remedy}")
            yield f"{about}; on normally distributed tensors it contracts, on others it may not: {remedy}"


def _as_one(layers: Sequence[TensorSpec]) -> TensorSpec:
    return TensorSpec("all layers", (sum(layer.numel for layer in layers),), layers[0].dtype)


def _expansion(compressor: Compressor, spec: TensorSpec) -> float:
    """omega where that is all that is promised, else 0."""
    promise = compressor.contract(spec)
    return 0.0 if promise.delta is not None or promise.omega is None else promise.omega


def _measured_error(compressor: Compressor, spec: TensorSpec) -> float:
    """|x - C(x)|^2 / |x|^2 for one drawn x, of the layer's shape or of fewer rows."""
    first, *others = spec.shape or (1,)
    rows = max(1, min(first, SAMPLED // max(1, math.prod(others))))
    sample = TensorSpec("sample", (rows, *others))
    tensor = torch.randn(sample.shape, generator=torch.Generator().manual_seed(0))
    decoded = compressor.decode(compressor.encode(tensor, Key(0)), sample, Key(0))
    return float((tensor - decoded).square().sum() / tensor.square().sum())


def _about_bias(caller: str, rule: Aggregator[Any], layers: Sequence[TensorSpec]) -> Iterator[str]:
    inside = list(parts_of(rule))
    if any(has(part, Capability.CORRECTS_ERROR) for part in inside):
        return
    for part in inside:
        if any(_is_biased(part, spec) for spec in layers):
            yield (
                f"{caller}: {part_text(rule)} is biased and has no memory: what it leaves out is lost at every step, "
                f"and training may stop short of its goal; put error feedback around it, ef({part_text(rule)})"
            )
            return


def _is_biased(part: Any, spec: TensorSpec) -> bool:
    """By its contract: not unbiased, and it leaves out coordinates or loses more than rounding does."""
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
