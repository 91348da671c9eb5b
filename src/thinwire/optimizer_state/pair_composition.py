"""Conversion of a composition for tensors into one for pairs (m, v)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeGuard

from ..aggregators import GatherMean
from ..catalog import part_text
from ..compressors import Identity
from ..core import (
    Aggregator,
    Capability,
    Compressor,
    IncompatibleParts,
    TensorSpec,
    WrapsCompressor,
    has,
    parts_of,
    rebuild,
    wraps_compressor,
)
from .config import MomentsConfig
from .pair_aggregator import PairAggregator
from .pair_compressor import PairCompressor


def build_pair_aggregator(moments: MomentsConfig) -> Aggregator[Any]:
    """Build the aggregator that averages pairs of m and v over ranks.

    Args:
        moments: The composition and the rules for v.

    Returns:
        An aggregator of tensors (2, *shape). Exact aggregators stay as they are: they average m and v themselves.

    Raises:
        IncompatibleParts: A part of the composition cannot carry pairs.
    """
    rules = moments.transmit, moments.mask, moments.block

    def convert(part: Any) -> Any:
        if is_exact_aggregator(part) or (isinstance(part, Compressor) and not isinstance(part, Aggregator)):
            return part
        if sends_one_payload(part):
            if has(part.compressor, Capability.LOSSLESS):
                return part
            return GatherMean(PairCompressor(part.compressor, *rules))  # gathered, because sums of √v are not sums of v
        if wraps_compressor(part) and has(part, Capability.SUMS_NONZEROS):
            exact: Any = replace(part, compressor=Identity())  # type: ignore[type-var]
            return PairAggregator(part.compressor, *rules, inner=exact)
        if has(part, Capability.ACCEPTS_MOMENT_PAIRS):
            return None
        raise IncompatibleParts(
            f"moments: {part_text(part)} cannot send pairs (m, v); use dense(), a compressor such as "
            "uniform(bits=8), sketch(...) or union(...) around one, and scheduled, switch, ef or ef21 around those"
        )

    return rebuild(moments.composition, convert)


def build_pair_compressor(moments: MomentsConfig) -> Compressor:
    """Build the compressor of pairs that are sent once, to one rank: no average, no memory.

    Args:
        moments: The composition, dense() or a compressor, and the rules for v.

    Returns:
        A compressor of tensors (2, *shape).

    Raises:
        IncompatibleParts: The composition needs several ranks or many rounds.
    """
    part = moments.composition
    if is_exact_aggregator(part):
        return Identity()
    if sends_one_payload(part):
        if has(part.compressor, Capability.LOSSLESS):
            return part.compressor
        return PairCompressor(part.compressor, moments.transmit, moments.mask, moments.block)
    raise IncompatibleParts(
        f"moments: {part_text(part)} is for several ranks or many rounds; send and receive take dense() or a "
        "compressor such as uniform(bits=8)"
    )


def is_exact_aggregator(part: Any) -> bool:
    """Whether it averages tensors exactly, with no part inside."""
    return has(part, Capability.LOSSLESS) and isinstance(part, Aggregator) and len(list(parts_of(part))) == 1


def sends_one_payload(part: Any) -> TypeGuard[WrapsCompressor]:
    return has(part, Capability.SENDS_ONE_PAYLOAD)


def select_by_size(spec: TensorSpec, compressing: Any, dense: Any, dense_below: int) -> Any:
    """Return `dense` for pairs of vectors and of layers with fewer than `dense_below` elements, else `compressing`."""
    return dense if len(spec.shape) < 3 or spec.numel < 2 * dense_below else compressing
