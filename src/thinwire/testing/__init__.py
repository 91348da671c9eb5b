"""Contract tests of parts, for the tests of any package: `pip install thinwire[testing]`.

    import pytest
    from thinwire.testing import COMPRESSOR_LAWS

    @pytest.mark.parametrize("law", COMPRESSOR_LAWS, ids=str)
    def test_my_topk_keeps(law):
        law(MyTopK(density=0.1))

A law is a property that every part of a kind must have. `check_compressor(part)` and the other check functions run all
laws of a kind. thinwire's own contract suites run the same laws over all registered parts.
"""

from __future__ import annotations

from . import extras  # first: its error says what to install
from .aggregators import AGGREGATOR_LAWS, MEMORY_LAWS, check_aggregator, check_memory
from .allocations import Allocations
from .batches import without_batches
from .capabilities import check_capabilities, find_contradictions, observe_capabilities
from .compressors import COMPRESSOR_LAWS, check_compressor, relative_error, roundtrip
from .controllers import CONTROLLER_LAWS, check_controller
from .decoders import DECODER_LAWS
from .examples import composition_texts, compressor_texts, controller_texts, keep_registry, topology_texts
from .laws import Law
from .lockstep import assert_same, reduce_all, restore_from_bytes
from .requests import REQUEST_LAWS, check_request
from .tensors import DTYPES, KINDS, SHAPES, draw
from .topologies import TOPOLOGY_LAWS, check_topology

__all__ = [
    "Law", "COMPRESSOR_LAWS", "DECODER_LAWS", "AGGREGATOR_LAWS", "MEMORY_LAWS", "CONTROLLER_LAWS", "TOPOLOGY_LAWS",
    "REQUEST_LAWS",
    "check_compressor", "check_aggregator", "check_memory", "check_controller", "check_topology", "check_request",
    "check_capabilities", "find_contradictions", "observe_capabilities",
    "KINDS", "SHAPES", "DTYPES", "draw", "reduce_all", "relative_error", "roundtrip", "assert_same",
    "restore_from_bytes", "without_batches", "Allocations",
    "compressor_texts", "composition_texts", "controller_texts", "topology_texts", "keep_registry", "extras",
]  # fmt: skip
