"""What no encoder could have written: every decoder answers with a DecodeError or a finite tensor of the agreed form.

The laws are those of `thinwire.testing`: some twenty thousand payloads, mutated or drawn at random.
"""

from __future__ import annotations

import pytest
import torch

from helpers.cases import COMPRESSOR_TEXTS, compressors
from thinwire.catalog import parse_compressor
from thinwire.core import DecodeError
from thinwire.kernels.varint import varint
from thinwire.testing import DECODER_LAWS, Allocations
from thinwire.testing.allocations import resident_peak_bytes
from thinwire.testing.decoders import CASES_EACH, SPECS
from thinwire.testing.mutations import MUTATIONS
from thinwire.wire import decode_indices

torch.set_num_threads(1)

MORE_TEXTS = [  # compositions whose decoders nest, and widths at the ends of their range
    "topk(density=0.6)",
    "topk(density=0.3, values=sign())",
    "topk(density=0.5, values=topk(density=0.5))",
    "randomk(density=0.5, values=qsgd(bits=4, block=4))",
    "randomk(density=0.5, values=topk(k=2, values=nearest_power2()))",
    "qsgd(bits=16, block=5)",
]
TEXTS = [*COMPRESSOR_TEXTS, *MORE_TEXTS]
EVERY = pytest.mark.parametrize(
    "compressor", [*compressors(), *map(parse_compressor, MORE_TEXTS)], ids=[text.replace('"', "") for text in TEXTS]
)


@EVERY
@pytest.mark.parametrize("law", DECODER_LAWS, ids=str)
def test_every_decoder_keeps(law, compressor):
    law(compressor)


def test_the_suite_has_at_least_twenty_thousand_cases():
    assert CASES_EACH % len(MUTATIONS) == 0
    assert CASES_EACH * len(SPECS) * len(TEXTS) >= 20_000


def test_the_measure_of_memory_sees_both_torch_and_numpy():
    with Allocations() as allocations:
        torch.zeros(1000).nonzero()
    assert 4_000 <= allocations.num_bytes < 1_000_000
    with Allocations() as allocations:
        torch.zeros(1000, dtype=torch.uint8).numpy().repeat(1000)
    assert allocations.num_bytes >= 1_000_000


@pytest.mark.parametrize("tail", [b"\x00", b"\x01", b"\x80", b"\xff"])
def test_twelve_bytes_that_announce_positions_of_2_to_40_are_refused_without_allocating(tail):
    before = resident_peak_bytes()
    for first in range(256):  # every coding with every parameter, and none
        for count in (2**10, 2**20, 2**31, 2**39, 2**40, 2**40 + 1, 2**63 - 1):
            head = bytes([first]) + varint(count)
            blob = torch.tensor(list(head + tail * (12 - len(head))), dtype=torch.uint8)
            with pytest.raises(DecodeError):
                decode_indices(blob, 2**40)
    with Allocations() as allocations:
        for first in (0, 1, 2, 2 | 20 << 2, 2 | 40 << 2, 2 | 41 << 2):
            for count in (2**10, 2**31, 2**40):
                head = bytes([first]) + varint(count)
                with pytest.raises(DecodeError):
                    decode_indices(torch.tensor(list(head + tail * (12 - len(head))), dtype=torch.uint8), 2**40)
    assert allocations.num_bytes < 1_000_000  # of all eighteen together
    assert resident_peak_bytes() - before < 64_000_000


def test_a_bitmap_of_2_to_40_places_is_refused_without_its_bytes():
    with Allocations() as allocations, pytest.raises(DecodeError):
        decode_indices(torch.tensor([1, 2, 3], dtype=torch.uint8), 2**40)
    assert allocations.num_bytes < 100_000
