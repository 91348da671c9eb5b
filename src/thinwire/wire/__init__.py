"""Serialization: bit packing, index coding, payload framing, and frames of sockets."""

from ..kernels import packed_bytes
from .bits import expect_packed, pack_bits, unpack_bits
from .checks import expect_magnitudes, expect_parts, expect_vector
from .frames import (
    MAX_FRAME,
    FrameHeader,
    decode_frame,
    encode_frame,
    fingerprint_of,
    frame_limit,
    read_header,
    read_rest,
)
from .framing import as_bytes, from_bytes, lengths_bytes, pack_payload, unpack_payload
from .indices import (
    INDEX_KINDS,
    decode_indices,
    encode_indices,
    expect_count,
    expected_index_bytes,
    ideal_index_bits,
    index_part,
    model_index_bits,
)
from .trits import pack_trits, trits_bytes, unpack_trits

__all__ = [
    "pack_bits", "packed_bytes", "unpack_bits",
    "encode_indices", "decode_indices", "expected_index_bytes", "ideal_index_bits", "expect_count", "index_part",
    "INDEX_KINDS", "model_index_bits",
    "as_bytes", "from_bytes", "pack_payload", "unpack_payload", "lengths_bytes",
    "pack_trits", "unpack_trits", "trits_bytes",
    "MAX_FRAME", "FrameHeader", "encode_frame", "decode_frame", "read_header", "read_rest", "fingerprint_of",
    "frame_limit",
    "expect_parts", "expect_vector", "expect_magnitudes", "expect_packed",
]  # fmt: skip
