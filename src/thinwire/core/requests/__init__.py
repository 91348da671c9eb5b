"""What a program may ask of its driver: one class per kind, each of which answers for itself."""

from .all_gather import AllGather
from .all_reduce import AllReduce, Op, combine, flag_alone, reduced_bytes, shard_sizes
from .all_to_all import AllToAll
from .base import Gathered, Label, Program, Request, World, payload_labels, reduce_labels, types_of
from .broadcast import Broadcast, tree_children
from .reduce_scatter import ReduceScatter
from .swap import Swap
from .work import Work

__all__ = [
    "AllGather", "AllReduce", "AllToAll", "Broadcast", "Gathered", "Label", "Op", "Program", "ReduceScatter", "Request",
    "Swap", "Work", "World", "combine", "flag_alone", "payload_labels", "reduce_labels", "reduced_bytes", "shard_sizes",
    "tree_children", "types_of",
]  # fmt: skip
