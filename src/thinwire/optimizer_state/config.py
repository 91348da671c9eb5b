"""How moments are sent: a composition and the rules that keep Adam's v valid, as an object and as text.

A text is a composition, with all rules, or `moments(uniform(bits=4), transmit="log", floor=false)`, which changes some.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import catalog
from ..core import Aggregator, CompositionError, Compressor
from .transforms import TRANSMITS


@dataclass(frozen=True)
class MomentsConfig:
    """A composition for pairs (m, v), and rules that can be switched off to see what they prevent.

    Attributes:
        composition: The aggregator of the pairs.
        transmit: What is compressed instead of v: "sqrt", "log", or "v" itself.
        floor: After decoding, v is at least the smallest value that any gradients could give beside this m.
        mask: v has the coordinates of m; where v decodes to zero, the mean of its block is used, so that no v is zero
            that was not.
        counters: Step counters are sent, exactly.
        block: Number of coordinates that share such a mean.
    """

    composition: Aggregator[Any]
    transmit: str = "sqrt"
    floor: bool = True
    mask: bool = True
    counters: bool = True
    block: int = 1024

    def __post_init__(self) -> None:
        if self.transmit not in TRANSMITS:
            raise CompositionError(f"moments: transmit must be one of {', '.join(TRANSMITS)}, got {self.transmit!r}")
        if self.block < 1:
            raise CompositionError(f"moments: block must be at least 1, got {self.block}; 1024 is usual")


class _MomentsReader(catalog.Reader):
    kinds = catalog.KINDS | {"moments settings": {"moments": MomentsConfig}}


def parse_moments(text: str) -> MomentsConfig:
    """Parse a composition for optimizer moments.

    Args:
        text: A composition such as `"uniform(bits=8)"`, or one with rules for v, such as
            `'moments(uniform(bits=4), transmit="log")'`.

    Returns:
        The composition and the rules that keep v valid.

    Raises:
        CompositionError: The text is not a composition for moments. The error shows the text with a mark below it.
    """
    part = _MomentsReader(text).part((*catalog.COMPOSED, "moments settings"))
    if isinstance(part, MomentsConfig):
        return part
    if not isinstance(part, Aggregator | Compressor):
        raise CompositionError(f"{text!r} is neither an aggregator nor a compressor; write for example uniform(bits=8)")
    return MomentsConfig(catalog.as_aggregator(part, repr(text)))


def resolve_moments(composition: str | MomentsConfig | Aggregator[Any] | Compressor) -> MomentsConfig:
    """Return the configuration for what users pass.

    Args:
        composition: A text, a configuration, or a part object.

    Returns:
        The configuration; one that is passed is returned as it is.

    Raises:
        CompositionError: It is none of these, or the text is not valid.
    """
    if isinstance(composition, MomentsConfig):
        return composition
    if isinstance(composition, str):
        return parse_moments(composition)
    return MomentsConfig(catalog.as_aggregator(composition, f"moments: composition={composition!r}"))


def moments_to_text(moments: MomentsConfig) -> str:
    """Write a configuration as text.

    Args:
        moments: The configuration.

    Returns:
        The shortest text that `parse_moments` reads back to an equal configuration, if all parts are in the catalog.
    """
    text = catalog.part_text(moments.composition)
    if moments == MomentsConfig(moments.composition):
        return text
    changed = catalog.changed_settings(moments, catalog.part_text, without=("composition",))
    return f"moments({', '.join([text, *changed])})"
