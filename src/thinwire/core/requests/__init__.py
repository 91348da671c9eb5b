"""Requests that a program may yield to its driver: one class per kind of communication."""

from .all_gather import AllGather
from .all_reduce import AllReduce, Op, all_reduce_bytes, combine, flag_alone, shard_sizes
from .all_to_all import AllToAll
from .base import (
    Addend,
    GatheredPayloads,
    Label,
    Program,
    Request,
    World,
    batch_labels,
    cut_all,
    payload_labels,
    reduce_labels,
    types_of,
)
from .broadcast import Broadcast, tree_children
from .group import RequestGroup
from .neighbor_exchange import NeighborExchange
from .reduce_scatter import ReduceScatter
from .work import Work

__all__ = [
    "Addend", "AllGather", "AllReduce", "AllToAll", "Broadcast", "GatheredPayloads", "Label", "Op", "Program",
    "ReduceScatter",
    "Request", "RequestGroup",
    "NeighborExchange", "Work", "World", "combine", "batch_labels", "cut_all", "flag_alone", "payload_labels",
    "reduce_labels",
    "all_reduce_bytes", "shard_sizes",
    "tree_children", "types_of",
]  # fmt: skip
