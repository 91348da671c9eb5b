"""What a part can do beyond the protocol of its kind: declared by its class, read here and nowhere else.

A class declares `capabilities: ClassVar[Capabilities] = frozenset({...})`, or a (cached) property of that name where
settings or the part inside decide. A part that declares none has none. `thinwire.testing` observes what a part does and
compares.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import cache
from inspect import getattr_static
from typing import TypeAlias

from .errors import CompositionError


class Capability(Enum):
    """The name that is printed, and what a part that has it does."""

    label: str
    about: str

    def __init__(self, label: str, about: str) -> None:
        self.label, self.about = label, about

    __hash__ = object.__hash__  # members are single objects; Enum's own hash is a function in Python, and slower

    LOSSLESS = (
        "lossless by itself",
        "a compressor decodes to the very tensor; an aggregator loses nothing but rounding of what is decoded",
    )
    ADDS_ON_WIRE = ("adds on the wire", "under one key, the sum of payloads decodes to the sum of what each decodes to")
    SENDS_EVERY_COORDINATE = (
        "sends every coordinate",
        "most coordinates arrive, each by itself: senders can be compared coordinate by coordinate",
    )
    SELECTS_COORDINATES = (
        "selects coordinates",
        "some coordinates travel; choosing them and encoding them are separate methods",
    )
    COUNTS_COORDINATES = ("counts coordinates", "`count(numel)` coordinates travel, always or on average")
    CODES_POSITIONS = (
        "codes positions",
        "a payload is the coded positions, then the payload of `values` for what stands there",
    )
    TAKES_IMPORTANCE = (
        "takes importance",
        "`with_importance(w)` is the same compressor with an importance for each coordinate",
    )
    SCALES_KEPT = (
        "scales what it keeps",
        "what travels is multiplied, so that a mean over draws is right, or by an importance",
    )
    LOSES_UNBOUNDED = (
        "loses without a bound",
        "biased by more than rounding; neither a contract nor a choice of coordinates says how",
    )
    VARIES_IN_SIZE = ("varies in size", "for tensors of one form, the bytes sent depend on the numbers")
    EXPECTS_BYTES = ("expects its bytes", "`nbytes`, of an aggregator `expected_bytes`, is what it sends on average")
    FUSES_RESIDUAL = ("fuses a residual", "adds a residual and gives the next one in fewer passes over the tensor")
    DECODES_MEAN = ("decodes a mean", "averages payloads in fewer passes than decoding each")
    ESTIMATES_ERRORS = ("estimates errors", "one look at a tensor tells what several settings would lose")
    WRAPS_COMPRESSOR = ("wraps a compressor", "what a rank sends is encoded by its `compressor`, which may be replaced")
    SENDS_ONE_PAYLOAD = ("sends one payload", "a rank sends one payload; the average is the mean of what all decode to")
    ADDS_NONZEROS = (
        "adds nonzeros",
        "adds on the wire what the compressor leaves of each tensor; zeros cost next to nothing",
    )
    KEEPS_PEER_COPIES = ("keeps peer copies", "ranks remember what their neighbors hold and send differences to that")
    FLATTENS_LAYERS = ("flattens layers", "all layers that have it are exchanged as one vector")
    OFFERS_MENU = ("offers a menu", "a controller chooses an option for each layer")
    CORRECTS_LOSS = ("corrects loss", "what was not sent is sent later, so that a biased compressor may stand inside")
    KEEPS_UNSENT = ("keeps the unsent", "adds to the next tensor what it did not send of the last")
    SENDS_DIFFERENCES = ("sends differences", "sends how the tensor differs from what it sent before")
    CARRIES_PAIRS = (
        "carries pairs",
        "only adds and subtracts tensors, so that Adam's m and v may travel through it stacked",
    )
    HAS_PERIOD = ("has a period", "weights at step t + `period(size)` are those at step t")
    TAKES_TURNS = ("takes turns", "with `one_peer=true` it takes its neighbors one a step")
    TAKES_MENUS = ("takes menus", "`given(choices)` is the same controller, told what it chooses from")
    EXPLAINS = ("explains", "`explained(state)` says what was decided, in numbers and words")
    MEASURES_WORLD = ("measures the world", "`elsewhere(state)` is its state for a world of another size")
    NEVER_OBSERVES = ("never observes", "its plan depends on no tensor: `observe` need not be called")


Capabilities: TypeAlias = frozenset[Capability]
NONE: Capabilities = frozenset()


def capabilities_of(part: object) -> Capabilities:
    """What a part declares, by its class or by a property."""
    declared = _declared(type(part))  # type: ignore[arg-type]  # mypy: a type might have another __hash__
    return part.capabilities if declared is None else declared  # type: ignore[attr-defined]


def has(part: object, capability: Capability) -> bool:
    """Whether a part declares this. A call less than by `capabilities_of`: it is asked for each layer at each step."""
    declared = _declared(type(part))  # type: ignore[arg-type]
    return capability in (part.capabilities if declared is None else declared)  # type: ignore[attr-defined]


def passed_on(part: object, *capabilities: Capability) -> Capabilities:
    """Those of these that a part has: for the property of a part around it."""
    return capabilities_of(part) & frozenset(capabilities)


def labels(capabilities: Iterable[Capability]) -> str:
    """For a table: in the order of the enumeration."""
    found = set(capabilities)
    return ", ".join(each.label for each in Capability if each in found)


@cache
def _declared(kind: type) -> Capabilities | None:
    """The declaration of a class; None where an instance decides."""
    declared = getattr_static(kind, "capabilities", NONE)
    if isinstance(declared, frozenset):
        return declared
    if hasattr(declared, "__get__"):
        return None
    raise CompositionError(
        f"{kind.__name__}: capabilities must be a frozenset of Capability or a property, got {declared!r}; "
        "frozenset({Capability.ADDS_ON_WIRE}) is an example"
    )
