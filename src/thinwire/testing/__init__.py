"""The laws that parts keep, for the tests of any package: `pip install thinwire[testing]`.

    import pytest
    from thinwire.testing import COMPRESSOR_LAWS

    @pytest.mark.parametrize("law", COMPRESSOR_LAWS, ids=str)
    def test_my_topk_keeps(law):
        law(MyTopK(density=0.1))

`check_compressor(part)` and its like run all laws of a kind at once. thinwire's own contract suites run the same laws
over all registered parts.
"""

from __future__ import annotations

from . import extras  # first: it says what to install
from .aggregators import AGGREGATOR_LAWS, MEMORY_LAWS, check_aggregator, check_memory
from .allocations import Allocations
from .capabilities import check_capabilities, contradictions, observed
from .compressors import COMPRESSOR_LAWS, check_compressor, decode_again, relative_error
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
    "check_capabilities", "contradictions", "observed",
    "KINDS", "SHAPES", "DTYPES", "draw", "reduce_all", "relative_error", "decode_again", "assert_same",
    "restore_from_bytes", "Allocations",
    "compressor_texts", "composition_texts", "controller_texts", "topology_texts", "keep_registry", "extras",
]  # fmt: skip
