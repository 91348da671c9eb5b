"""The catalog: parts by name, and compositions as text: `ef(topk(density=0.01, values="bf16"))`.

A composition text is a Python-like expression of calls, numbers and strings; it is parsed, never evaluated. A bare
compressor gets its default aggregator: additive payloads are summed on the wire, all others gathered. `to_text` writes
the shortest text that `parse` reads back to an equal object.
"""

from .kinds import member_types, settings_of
from .reader import COMPOSED, Reader, as_aggregator, parse, parse_compressor
from .registry import (
    AGGREGATORS,
    COMPRESSORS,
    CONTROLLERS,
    KINDS,
    MEMORIES,
    NAMES,
    PARTS,
    REGISTRY,
    TOPOLOGIES,
    Registration,
    register,
)
from .tables import DENSE_BELOW, default_aggregator, is_controller, without_compression
from .writer import changed_settings, part_text, to_text

__all__ = [
    "COMPRESSORS", "AGGREGATORS", "MEMORIES", "TOPOLOGIES", "CONTROLLERS", "KINDS", "PARTS", "NAMES", "DENSE_BELOW",
    "REGISTRY", "Registration", "register", "default_aggregator", "without_compression", "is_controller",
    "Reader", "COMPOSED", "parse", "parse_compressor", "member_types", "to_text", "part_text", "settings_of",
    "changed_settings", "as_aggregator",
]  # fmt: skip
