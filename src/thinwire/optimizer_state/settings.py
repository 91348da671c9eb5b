"""How moments travel: a composition and the rules of keeping Adam's state sound, as a part and as text.

A text is a composition, with all rules, or `moments(uniform(bits=4), transmit="log", floor=false)`, which changes some.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import catalog
from ..core import Aggregator, CompositionError, Compressor
from .transforms import TRANSMITS


@dataclass(frozen=True)
class Moments:
    """Send m and v of an Adam through `exchange`, by rules that can be switched off to see what they prevent.

    transmit: what is compressed in the place of v: "sqrt", "log", or "v" itself. floor: v is nowhere less than any
    gradients could have left it beside that m. mask: v goes with m: the same coordinates, and for what decodes to zero
    the mean of its block, so that no v is zero where there was one. counters: step counters travel, exact.
    block: coordinates that share such a mean.
    """

    exchange: Aggregator[Any]
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


class _Reader(catalog.Reader):
    kinds = catalog.KINDS | {"moments settings": {"moments": Moments}}


def parse_moments(text: str) -> Moments:
    """What a text describes; errors show the text with a mark under the place."""
    part = _Reader(text).part((*catalog.COMPOSED, "moments settings"))
    if isinstance(part, Moments):
        return part
    if not isinstance(part, Aggregator | Compressor):
        raise CompositionError(f"{text!r} is no exchange; write for example uniform(bits=8)")
    return Moments(catalog.aggregator_of(part, repr(text)))


def moments_of(composition: str | Moments | Aggregator[Any] | Compressor) -> Moments:
    """What `thinwire.moments` is given: a text, settings, or a part."""
    if isinstance(composition, Moments):
        return composition
    if isinstance(composition, str):
        return parse_moments(composition)
    return Moments(catalog.aggregator_of(composition, f"moments: composition={composition!r}"))


def moments_text(moments: Moments) -> str:
    """The shortest text that is read back to the same, if all of its parts are in the catalog."""
    inside = catalog.part_text(moments.exchange)
    if moments == Moments(moments.exchange):
        return inside
    changed = catalog.changed_settings(moments, catalog.part_text, without=("exchange",))
    return f"moments({', '.join([inside, *changed])})"
