"""The vocabulary: what is sent, what may be asked, what parts promise. Imports nothing of the other rooms."""

from .context import Context, Key, Plan, derive_key
from .errors import (
    CompositionError,
    DecodeError,
    IncompatibleParts,
    PeerLostError,
    ProtocolError,
    ThinwireError,
)
from .parts import Aggregator, Chooser, Compressor, Contract, Controller, Reduced, Seen, adds_up
from .programs import fuse, fuse_flagged, loopback, stamped
from .requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Gathered,
    Label,
    Op,
    Program,
    Request,
    World,
    describe,
    payload_for,
    payload_labels,
    reduce_labels,
    shard_sizes,
    wire_bytes,
)
from .state import flatten_state, restore_state
from .tensors import Part, Payload, TensorSpec, all_finite, narrow, nbytes_of, saturate

__all__ = [
    "TensorSpec", "Part", "Payload", "all_finite", "narrow", "nbytes_of", "saturate",
    "AllReduce", "AllGather", "AllToAll", "Broadcast", "Gathered", "Op", "Label", "Request", "Program", "World",
    "describe", "payload_labels", "reduce_labels", "payload_for", "shard_sizes", "wire_bytes",
    "fuse", "fuse_flagged", "loopback", "stamped",
    "Context", "Key", "Plan", "derive_key",
    "Contract", "Compressor", "Chooser", "Aggregator", "Controller", "Reduced", "Seen", "adds_up",
    "flatten_state", "restore_state",
    "ThinwireError", "CompositionError", "IncompatibleParts", "DecodeError", "ProtocolError", "PeerLostError",
]  # fmt: skip
