"""A composition for tensors made into one for pairs of moments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..aggregators import Dense, GatherMean, Scheduled, SketchSum, SumMean, Switch, UnionSum
from ..catalog import part_text
from ..compressors import Identity
from ..core import Aggregator, Compressor, IncompatibleParts, TensorSpec, rebuilt
from ..feedback import EF21, ErrorFeedback
from .pairs import Paired
from .settings import Moments
from .sums import PairedSum

_AROUND = (ErrorFeedback, EF21, Scheduled, Switch)  # these ask nothing of a tensor but that it can be added


def for_pairs(moments: Moments) -> Aggregator[Any]:
    """The same exchange for tensors (2, *shape) of m and v. Exact ones stay: they give the mean of m and of v."""
    rules = moments.transmit, moments.mask, moments.block

    def change(part: Any) -> Any:
        if isinstance(part, Dense) or (isinstance(part, Compressor) and not isinstance(part, Aggregator)):
            return part
        if isinstance(part, GatherMean | SumMean):
            if isinstance(part.compressor, Identity):
                return part
            return GatherMean(Paired(part.compressor, *rules))  # gathered: sums of √v are no sums of v
        if isinstance(part, SketchSum | UnionSum):
            return PairedSum(part.compressor, *rules, inner=replace(part, compressor=Identity()))
        if isinstance(part, _AROUND):
            return None
        raise IncompatibleParts(
            f"moments: {part_text(part)} cannot carry m and v together; use dense(), a compressor such as "
            "uniform(bits=8), sketch(...) or union(...) around one, and scheduled, switch, ef or ef21 around those"
        )

    return rebuilt(moments.exchange, change)


def for_one_host(moments: Moments) -> Compressor:
    """How a pair is encoded to be sent once, to one other host: no mean, no memory."""
    part = moments.exchange
    if isinstance(part, Dense):
        return Identity()
    if isinstance(part, GatherMean | SumMean):
        if isinstance(part.compressor, Identity):
            return part.compressor
        return Paired(part.compressor, moments.transmit, moments.mask, moments.block)
    raise IncompatibleParts(
        f"moments: {part_text(part)} is for several hosts or many rounds; what is sent once, to one host, goes through "
        "dense() or a compressor such as uniform(bits=8)"
    )


def carried(spec: TensorSpec, whole: Any, dense: Any, small: int) -> Any:
    """`whole` for a pair that is large enough to gain by it, else `dense`: vectors and what has few elements."""
    return dense if len(spec.shape) < 3 or spec.numel < 2 * small else whole
