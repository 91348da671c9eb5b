"""A composition for tensors made into one for pairs of moments."""

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
    rebuilt,
    wraps_compressor,
)
from .pairs import Paired
from .settings import Moments
from .sums import PairedSum


def for_pairs(moments: Moments) -> Aggregator[Any]:
    """The same exchange for tensors (2, *shape) of m and v. Exact ones stay: they give the mean of m and of v."""
    rules = moments.transmit, moments.mask, moments.block

    def change(part: Any) -> Any:
        if is_plain(part) or (isinstance(part, Compressor) and not isinstance(part, Aggregator)):
            return part
        if sends_one_payload(part):
            if has(part.compressor, Capability.LOSSLESS):
                return part
            return GatherMean(Paired(part.compressor, *rules))  # gathered: sums of √v are no sums of v
        if wraps_compressor(part) and has(part, Capability.SUMS_NONZEROS):
            exact: Any = replace(part, compressor=Identity())  # type: ignore[type-var]
            return PairedSum(part.compressor, *rules, inner=exact)
        if has(part, Capability.ACCEPTS_MOMENT_PAIRS):
            return None
        raise IncompatibleParts(
            f"moments: {part_text(part)} cannot carry m and v together; use dense(), a compressor such as "
            "uniform(bits=8), sketch(...) or union(...) around one, and scheduled, switch, ef or ef21 around those"
        )

    return rebuilt(moments.exchange, change)


def for_one_host(moments: Moments) -> Compressor:
    """How a pair is encoded to be sent once, to one other host: no mean, no memory."""
    part = moments.exchange
    if is_plain(part):
        return Identity()
    if sends_one_payload(part):
        if has(part.compressor, Capability.LOSSLESS):
            return part.compressor
        return Paired(part.compressor, moments.transmit, moments.mask, moments.block)
    raise IncompatibleParts(
        f"moments: {part_text(part)} is for several hosts or many rounds; what is sent once, to one host, goes through "
        "dense() or a compressor such as uniform(bits=8)"
    )


def is_plain(part: Any) -> bool:
    """Whether tensors are averaged as they are: exact, with no part inside."""
    return has(part, Capability.LOSSLESS) and isinstance(part, Aggregator) and len(list(parts_of(part))) == 1


def sends_one_payload(part: Any) -> TypeGuard[WrapsCompressor]:
    return has(part, Capability.SENDS_ONE_PAYLOAD)


def carried(spec: TensorSpec, whole: Any, dense: Any, dense_below: int) -> Any:
    """`whole` for a pair that is large enough to gain by it, else `dense`: vectors and what has few elements."""
    return dense if len(spec.shape) < 3 or spec.numel < 2 * dense_below else whole
