"""Optional capabilities of parts, declared by their classes and read only through this module.

A class declares `capabilities: ClassVar[Capabilities] = frozenset({...})`, or a (cached) property of that name where
they depend on settings or on the part inside. A part that declares none has none. `thinwire.testing` observes what a
part does and compares it with the declaration.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import cache
from inspect import getattr_static
from typing import TypeAlias

from .errors import CompositionError


class Capability(Enum):
    """One optional capability: the label printed by `thinwire parts`, and what a part that has it does."""

    label: str
    about: str

    def __init__(self, label: str, about: str) -> None:
        self.label, self.about = label, about

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is a Python function, and slower

    LOSSLESS = (
        "lossless",
        "a compressor decodes to exactly its input; an aggregator itself loses nothing but rounding",
    )
    ADDITIVE = ("additive", "with one key, the sum of payloads decodes to the sum of what each decodes to")
    SENDS_EVERY_COORDINATE = (
        "sends every coordinate",
        "most coordinates arrive, each by itself: senders can be compared coordinate by coordinate",
    )
    SELECTS_COORDINATES = (
        "selects coordinates",
        "only some coordinates are sent; selecting and encoding them are separate methods",
    )
    COUNTS_COORDINATES = ("counts coordinates", "`count(numel)` coordinates are sent, always or on average")
    CODES_POSITIONS = (
        "codes positions",
        "a payload is the coded positions, then the payload of `values` for the numbers at them",
    )
    TAKES_IMPORTANCE = (
        "takes importance",
        "`with_importance(w)` is the same compressor with an importance for each coordinate",
    )
    SCALES_KEPT = (
        "scales kept values",
        "sent values are multiplied, by an importance or so that the compressor is unbiased",
    )
    UNBOUNDED_BIAS = (
        "unbounded bias",
        "biased by more than rounding, and neither a contract nor a selection of coordinates bounds the error",
    )
    VARIABLE_SIZE = ("variable size", "for tensors of one shape and type, the bytes sent depend on the numbers")
    EXPECTS_BYTES = ("predicts its size", "`num_bytes`, of an aggregator `expected_bytes`, is what it sends on average")
    FUSES_RESIDUAL = ("fused residual", "adds a residual and returns the next one in fewer passes over the tensor")
    FUSES_ESTIMATE = (
        "fused estimate",
        "sends the difference to an estimate and returns the next one in fewer passes over the tensors of a batch",
    )
    DECODES_MEAN = ("fused mean", "averages payloads in fewer passes over the tensor than decoding each")
    BATCHES_LAYERS = (
        "batched layers",
        "handles all layers of an exchange in one call: `reduce_many`, of a compressor `encode_many`",
    )
    ESTIMATES_ERRORS = ("estimates errors", "`estimate_errors` gives the errors of several settings in one pass")
    WRAPS_COMPRESSOR = ("wraps a compressor", "a rank's tensor is encoded by its `compressor`, which may be replaced")
    SENDS_ONE_PAYLOAD = (
        "sends one payload",
        "a rank sends one payload; the average is the mean of what they decode to",
    )
    SUMS_NONZEROS = (
        "sums nonzeros",
        "sums on the wire what the compressor leaves of each tensor; zeros cost almost nothing",
    )
    TRACKS_PEER_COPIES = ("tracks peer copies", "ranks keep copies of their neighbors' tensors and send differences")
    FLATTENS_LAYERS = ("flattens layers", "all layers that have it are exchanged as one vector")
    HAS_MENU = ("has a menu", "a controller chooses one of its options for each layer")
    CORRECTS_ERROR = ("corrects errors", "what was not sent is sent later, so a biased compressor may be used inside")
    KEEPS_RESIDUAL = ("keeps a residual", "adds to the next tensor what was not sent of the last")
    SENDS_DIFFERENCES = ("sends differences", "sends the difference between the tensor and what was sent before")
    ACCEPTS_MOMENT_PAIRS = (
        "accepts moment pairs",
        "only adds and subtracts tensors, so Adam's m and v may be sent through it stacked",
    )
    HAS_PERIOD = ("periodic", "weights at step t + `period(size)` are those at step t")
    SUPPORTS_ONE_PEER = ("one peer per step", "with `one_peer=true` a rank exchanges with one neighbor per step")
    TAKES_MENUS = ("takes menus", "`with_menus(menus)` is the same controller for these layers and their menus")
    REPORTS = ("reports", "`report(state)` gives the decisions as numbers and texts")
    RESIZES_STATE = ("resizes its state", "`on_world_resize(state)` is its state for a world of another size")
    NEVER_OBSERVES = ("never observes", "its plan depends on no tensor: `observe` need not be called")


Capabilities: TypeAlias = frozenset[Capability]
NONE: Capabilities = frozenset()


def capabilities_of(part: object) -> Capabilities:
    """The capabilities that a part declares, as a class attribute or as a property."""
    declared = _read_declaration(type(part))  # type: ignore[arg-type]  # mypy: a type might have another __hash__
    return part.capabilities if declared is None else declared  # type: ignore[attr-defined]


def has(part: object, capability: Capability) -> bool:
    """Whether a part declares this capability."""
    # one call less than through `capabilities_of`: this runs for each layer at each step
    declared = _read_declaration(type(part))  # type: ignore[arg-type]
    return capability in (part.capabilities if declared is None else declared)  # type: ignore[attr-defined]


def inherit_capabilities(part: object, *capabilities: Capability) -> Capabilities:
    """Those of these capabilities that a part has, for the `capabilities` property of a wrapper."""
    return capabilities_of(part) & frozenset(capabilities)


def labels(capabilities: Iterable[Capability]) -> str:
    """Their labels as one text, in the order of the enumeration."""
    declared = set(capabilities)
    return ", ".join(capability.label for capability in Capability if capability in declared)


@cache
def _read_declaration(kind: type) -> Capabilities | None:
    """The class attribute; None if it is a property, so that the instance decides."""
    declared = getattr_static(kind, "capabilities", NONE)
    if isinstance(declared, frozenset):
        return declared
    if hasattr(declared, "__get__"):
        return None
    raise CompositionError(
        f"{kind.__name__}: capabilities must be a frozenset of Capability or a property, got {declared!r}; "
        "frozenset({Capability.ADDITIVE}) is an example"
    )
