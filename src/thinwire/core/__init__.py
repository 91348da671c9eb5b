"""Requests, programs, payloads, specs, context, protocols of parts, and errors. Imports no other package."""

from .capabilities import Capabilities, Capability, capabilities_of, has, inherit_capabilities, labels
from .closing import ClosedOnExit
from .composition import parts_of, rebuild, with_importance
from .context import Context, Key, Plan, derive_key
from .controllers import (
    Controller,
    EstimatesErrors,
    ExpectsBytes,
    HasMenu,
    LayerMenus,
    LayerObservation,
    Menu,
    Reports,
    ResizesState,
    TakesMenus,
    estimate_compressor_errors,
    estimates_errors,
    expects_bytes,
    has_menu,
    plans_from_tensors,
    plans_to_tensors,
    reports,
    resizes_state,
    takes_menus,
)
from .errors import (
    AuthenticationError,
    CheckpointError,
    ClosedError,
    CompositionError,
    ConfigMismatch,
    DecodeError,
    DivergedError,
    FrameError,
    IncompatibleParts,
    MissingExtra,
    NonFiniteError,
    PeerLostError,
    PluginError,
    PluginWarning,
    ProtocolError,
    ThinwireError,
    UnsupportedTorch,
)
from .files import write_atomically
from .flattening import FlattenBuffer, FlattenLayers
from .hints import union_members
from .memories import (
    LayerMemory,
    Memory,
    MemoryItem,
    PrivateState,
    SendForm,
    SendsToServer,
    adopt_into,
    check_inner,
    give_back_to,
    list_some,
    memory_items,
    merge_memories,
    needs_all_ranks_error,
    send_form_around,
    send_form_of,
    split_kind,
    take_over,
    target_of,
)
from .messages import Field, Message
from .options import (
    check_choice,
    check_flag,
    check_int,
    check_number,
    check_scaler,
    check_timeout,
)
from .parts import (
    AcceptsImportance,
    Aggregator,
    CodesPositions,
    Compressor,
    Contract,
    CoordinateSelector,
    CountsCoordinates,
    DecodesMean,
    FusedResidualAggregator,
    FusedResidualEncoder,
    Reduced,
    WrapsCompressor,
    codes_positions,
    counts_coordinates,
    decodes_mean,
    encodes_with_residual,
    is_additive,
    reduce_and_subtract,
    reduce_with_residual,
    selects_coordinates,
    takes_importance,
    wraps_compressor,
)
from .plugins import Plugins
from .programs import drive, fuse, fuse_flagged, loopback, with_step, with_timing
from .requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    GatheredPayloads,
    Label,
    NeighborExchange,
    Op,
    Program,
    ReduceScatter,
    Request,
    Work,
    World,
    all_reduce_bytes,
    combine,
    payload_labels,
    reduce_labels,
    shard_sizes,
    tree_children,
    types_of,
)
from .shapes import Dims, fold, matrix_dims, near_square, tensor_dims, unfold
from .signatures import signature_of
from .state import flatten_state, mean_state, require_keys, restore_state
from .suggestions import closest, did_you_mean
from .tensors import Part, Payload, TensorSpec, all_finite, cast_saturating, saturate
from .topology import (
    Neighbors,
    Topology,
    accepts_weights,
    has_period,
    is_lossless,
    neighbors_of,
    topology_of,
    tracks_peer_copies,
)
from .tunable import BITS, DENSITY, RANK, Tunable, tunable_of
from .units import BYTES, format_bytes, parse_rate

__all__ = [
    "TensorSpec", "Part", "Payload", "all_finite", "cast_saturating", "saturate",
    "AllReduce", "AllGather", "AllToAll", "Broadcast", "NeighborExchange", "GatheredPayloads", "Op", "Label",
    "Request", "Program", "World",
    "ReduceScatter", "Work", "combine", "payload_labels", "reduce_labels", "shard_sizes", "tree_children", "types_of",
    "drive", "fuse", "fuse_flagged", "loopback", "with_step", "with_timing",
    "Context", "Key", "Plan", "derive_key",
    "Contract", "Compressor", "CoordinateSelector", "AcceptsImportance", "Aggregator", "Controller",
    "FusedResidualAggregator", "FusedResidualEncoder",
    "Menu", "LayerMenus", "HasMenu", "TakesMenus", "EstimatesErrors", "ExpectsBytes", "Reports", "ResizesState",
    "estimate_compressor_errors", "plans_from_tensors", "plans_to_tensors", "all_reduce_bytes",
    "DecodesMean", "Reduced", "LayerObservation", "is_additive", "decodes_mean", "encodes_with_residual",
    "reduce_and_subtract", "reduce_with_residual",
    "Dims", "matrix_dims", "tensor_dims", "near_square", "fold", "unfold",
    "Capability", "Capabilities", "capabilities_of", "has", "labels", "inherit_capabilities",
    "selects_coordinates", "codes_positions", "counts_coordinates", "takes_importance", "wraps_compressor",
    "estimates_errors", "expects_bytes", "has_menu", "takes_menus", "reports", "resizes_state", "has_period",
    "CodesPositions", "CountsCoordinates", "WrapsCompressor",
    "parts_of", "rebuild", "with_importance", "signature_of", "closest", "did_you_mean",
    "check_int", "check_number", "check_timeout", "check_choice", "check_flag", "check_scaler",
    "FlattenLayers", "FlattenBuffer",
    "Topology", "Neighbors", "neighbors_of", "topology_of", "is_lossless", "tracks_peer_copies", "accepts_weights",
    "check_inner",
    "flatten_state", "restore_state", "mean_state", "require_keys",
    "Memory", "PrivateState", "SendForm", "SendsToServer", "MemoryItem", "LayerMemory", "adopt_into", "give_back_to",
    "memory_items",
    "merge_memories", "needs_all_ranks_error", "send_form_around", "send_form_of", "list_some", "split_kind",
    "take_over",
    "target_of",
    "ConfigMismatch", "DivergedError", "MissingExtra", "NonFiniteError", "UnsupportedTorch",
    "ThinwireError", "CompositionError", "IncompatibleParts", "DecodeError", "ProtocolError", "PeerLostError",
    "CheckpointError", "ClosedError", "FrameError", "AuthenticationError",
    "Field", "Message", "ClosedOnExit",
    "Plugins", "PluginError", "PluginWarning", "Tunable", "tunable_of", "DENSITY", "BITS", "RANK",
    "BYTES", "format_bytes", "parse_rate", "union_members", "write_atomically",
]  # fmt: skip
