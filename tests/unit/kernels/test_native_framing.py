"""Every build of the C kernels writes and reads messages as the definition does, and refuses the same bytes."""

import numpy as np
import pytest
import torch

from helpers.same_bits import alike
from thinwire.core import DecodeError, PartTable
from thinwire.kernels import framing, native
from thinwire.kernels.native import calls_framing

pytestmark = pytest.mark.skipif(not native.runnable_builds(), reason="no C kernels were built here")


def table_of(parts):
    return PartTable(
        *(np.array(row, dtype=np.int64) for row in ([p.data_ptr() for p in parts], [p.nbytes for p in parts]))
    )


@pytest.mark.parametrize("seed", range(5))
def test_messages_are_written_and_read_the_same(library, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = [0, 1, 127, 128, 4095, 4096, 4097, 20_000][: seed + 4]
    order = torch.randperm(len(lengths), generator=generator).tolist()
    parts = [torch.randint(0, 256, (lengths[i],), generator=generator).to(torch.uint8) for i in order]
    table = table_of(parts)
    size = framing.framed_length(table.lengths)
    assert calls_framing.framed_length(library, table.lengths) == size == framing.framed_length(table.lengths.tolist())
    ours, theirs = (torch.full((size,), 9, dtype=torch.uint8) for _ in range(2))
    calls_framing.pack_parts(library, table, ours)
    assert alike(ours, framing.pack_parts(table, theirs))
    read, expected = calls_framing.unpack_parts(library, ours, len(parts)), framing.unpack_parts(ours, len(parts))
    assert all(map(np.array_equal, read, expected)) and read[1].tolist() == [part.nbytes for part in parts]
    assert [ours[s : s + n].tolist() for s, n in zip(*read, strict=True)] == [part.tolist() for part in parts]


def read_parts(unpack, message, count):
    try:
        return [each.tolist() for each in unpack(message, count)]
    except DecodeError:
        return None


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_are_cut_into_parts_the_same_or_refused_by_both(library, seed):
    """C itself is asked too, since its caller asks the definition where something is wrong."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(50):
        size, count = (int(torch.randint(0, most, (1,), generator=generator)) for most in (40, 6))
        message = torch.randint(0, 256, (size,), generator=generator).to(torch.uint8)
        message[: count + 2] &= 0x87  # short lengths, so that some messages add up; or endless ones
        starts, lengths = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        wrong = library.tw_unpack_parts(message.data_ptr(), size, count, starts.ctypes.data, lengths.ctypes.data)
        expected = read_parts(framing.unpack_parts, message, count)
        assert read_parts(lambda *args: calls_framing.unpack_parts(library, *args), message, count) == expected
        assert (None if wrong else [starts.tolist(), lengths.tolist()]) == expected


def test_lengths_near_the_largest_number_do_not_wrap_around(library):
    for head in ([0xFF] * 8 + [0x7F], [0xFF] * 9 + [0x01], [0x80] * 9, [0xFF] * 8 + [0x3F, 2]):
        message = torch.tensor([*head, 1, 2, 3], dtype=torch.uint8)
        for count in (1, 2):
            starts = np.zeros(count, dtype=np.int64)
            assert library.tw_unpack_parts(message.data_ptr(), message.numel(), count, *[starts.ctypes.data] * 2)
            with pytest.raises(DecodeError):
                calls_framing.unpack_parts(library, message, count)
