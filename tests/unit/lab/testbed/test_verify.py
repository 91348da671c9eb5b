from dataclasses import asdict

import pytest

from thinwire import CompositionError
from thinwire.core import near_square
from thinwire.drivers.meter import Traffic
from thinwire_lab.testbed.counters import FRAME_BYTES, Counts
from thinwire_lab.testbed.verify import compare_counts, verify


@pytest.mark.parametrize(("numel", "shape"), [(1, (1, 1)), (7, (1, 7)), (12, (3, 4)), (1_000_000, (1000, 1000))])
def test_a_layer_is_as_square_as_its_divisors_allow(numel, shape):
    assert near_square(numel, exact=True) == shape


def turn(bits=80_000, payload=10_000, metered=9_990, gloo=60, seen=10_100, packets=7):
    """What one rank counted: like figures in both directions."""
    wire = seen + FRAME_BYTES * packets
    total = Traffic(requests=5, model_bits=bits, payload_bytes=payload, sent_bytes=metered, received_bytes=metered)
    headers = Traffic(requests=5, sent_bytes=50, received_bytes=50)
    counts = [wire, packets, wire, packets]
    return {"total": asdict(total), "headers": asdict(headers), "gloo": [gloo, gloo], "counts": counts}


def test_counts_that_agree_hold():
    found = compare_counts("dense()", (10, 10), 5, [turn(), turn()])
    assert found.holds and found.model_bits == 160_000 and found.requests == 5
    assert [c.what for c in found.comparisons] == ["payload", "sent", "received"] * 2
    assert found.comparisons[1].percent == pytest.approx(100 * 50 / 10_050)
    assert found.as_json()["holds"] is True and found.as_json()["comparisons"][1]["found_bytes"] == 10_100


@pytest.mark.parametrize(
    ("odd", "whats"),
    [
        (turn(payload=10_400), {"payload"}),
        (turn(payload=9_600), {"payload"}),
        (turn(seen=10_400), {"sent", "received"}),
        (turn(seen=9_700), {"sent", "received"}),
        (turn(bits=0.0), {"payload"}),
    ],
)
def test_beyond_three_percent_either_way_nothing_holds(odd, whats):
    found = compare_counts("dense()", (10, 10), 5, [turn(), odd])
    assert not found.holds
    assert {c.what for c in found.comparisons if not c.holds} == whats
    assert all(c.rank == 1 for c in found.comparisons if not c.holds)


def test_counts_are_differences_and_know_their_frames():
    counts = Counts(1000, 2, 500, 1).since(Counts(100, 1, 100, 0))
    assert counts == (900, 1, 400, 1) and counts.without_frames() == (900 - FRAME_BYTES, 400 - FRAME_BYTES)


def test_a_composition_is_refused_before_anything_starts():
    with pytest.raises(CompositionError, match="no part is called"):
        verify("nonsense()")
    with pytest.raises(ValueError, match="at least 2"):
        verify("dense()", workers=1)
