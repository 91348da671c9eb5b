"""Long messages between several ranks: around a ring, forwarded chunk by chunk, where the link makes that pay."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from thinwire.core import World
from thinwire.drivers.mesh import Mesh
from thinwire.drivers.routes import LONG_BYTES, LongMessages, cut_chunks, ring_route


@pytest.fixture(autouse=True)
def loopback(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.parametrize("size", (2, 3, 5))
@pytest.mark.parametrize("length", (1, 40_000, 1_000_000))
def test_a_ring_brings_every_blob_to_every_rank_and_counts_what_it_sends(size, length):
    store, blobs = HashStore(), [bytes([rank + 1]) * length for rank in range(size)]

    def gather(rank):
        mesh = Mesh(World(rank, size), store, 10)
        held = [bytearray(blobs[r] if r == rank else length) for r in range(size)]
        sent = mesh.transfer(*ring_route(World(rank, size), [memoryview(each) for each in held]))
        mesh.close()
        return sent, [bytes(each) for each in held]

    with ThreadPoolExecutor(size) as pool:
        for sent, held in pool.map(gather, range(size)):
            assert held == blobs
            assert sent == (size - 1) * length


def test_chunks_are_the_message_in_few_pieces():
    for length in (1, 1 << 15, (1 << 15) + 1, 10_000_000):
        message = memoryview(bytearray(length))
        chunks = list(cut_chunks(message))
        assert sum(chunk.nbytes for chunk in chunks) == length and 1 <= len(chunks) <= 8


def announce(rate, round_trip_s):
    """The smallest length, of powers of two, that is long after transfers at this rate."""
    messages = LongMessages(lambda: round_trip_s)
    for _ in range(20):
        messages.add_transfer(100_000, 100_000 / rate)
    return next(1 << bits for bits in range(10, 30) if messages.is_long(1 << bits))


def test_a_message_is_long_earlier_on_a_thin_link_but_not_on_a_distant_one():
    assert announce(rate=2.5e6, round_trip_s=1e-4) == 1 << 14  # 20 Mbit/s
    assert announce(rate=12.5e6, round_trip_s=1e-4) == 1 << 15  # 100 Mbit/s
    assert announce(rate=125e6, round_trip_s=1e-4) == LONG_BYTES
    assert announce(rate=2.5e6, round_trip_s=0.04) == LONG_BYTES


def test_the_length_is_fixed_until_the_link_is_known_and_short_transfers_tell_nothing():
    messages = LongMessages(lambda: 0.0)
    for _ in range(100):
        messages.add_transfer(1000, 1.0)
    assert messages.is_long(LONG_BYTES) and not messages.is_long(LONG_BYTES - 1)
