"""Messages as frames: what comes back, and everything that is refused."""

from __future__ import annotations

import importlib.util
import json
import random
import resource
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.core import DecodeError, FrameError, Message, Payload, ProtocolError, TensorSpec
from thinwire.wire import MAX_FRAME, as_bytes, decode_frame, encode_frame, fingerprint_of, frame_limit, read_header
from thinwire.wire.frames import DTYPES, HEADER_BYTES

FORM = struct.Struct("<4sBBHQQQQ")
WORDS = st.integers(0, 2**63 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
SCALARS = (
    st.none()
    | st.booleans()
    | NAMES
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)
FIELDS = st.dictionaries(NAMES, SCALARS | st.lists(SCALARS, max_size=4), max_size=4)
PARTS = st.lists(st.tuples(st.sampled_from(DTYPES), st.binary(max_size=16)), max_size=4)


def part(dtype: torch.dtype, data: bytes) -> torch.Tensor:
    return torch.tensor(list(data * dtype.itemsize), dtype=torch.uint8).view(dtype)


def message(count: int = 3) -> Message:
    payload = Payload((torch.arange(count, dtype=torch.float32), torch.arange(5, dtype=torch.uint8)))
    return Message("push", "worker 3", 7, 11, {"loss": 0.5, "layers": ["a", "b"]}, payload)


def crafted(head: bytes, body: bytes = b"", version: int = 2, sealed: int = 0, round_: int = 0) -> bytes:
    """A frame whose checksums are right, whatever is in it."""
    form = FORM.pack(b"thwf", version, sealed, len(head), round_, 0, 0, len(body))
    start = zlib.crc32(form)
    return form + struct.pack("<I", start) + head + body + struct.pack("<I", zlib.crc32(head + body, start))


def head(kind: bytes = b"push", sender: bytes = b"w", codes: bytes = b"", text: bytes = b"{}") -> bytes:
    made = struct.pack("<BBH", len(kind), len(sender), len(codes)) + kind + sender + codes + text
    return made + b" " * (-len(made) % 8)


@given(NAMES, NAMES, WORDS, WORDS, FIELDS, PARTS, st.integers(0, 2**64 - 1))
@settings(max_examples=300, deadline=None)
def test_a_message_comes_back_bit_for_bit(kind, sender, round_, sequence, fields, drawn, fingerprint):
    sent = Message(kind, sender, round_, sequence, fields, Payload(tuple(part(d, b) for d, b in drawn)))
    got = decode_frame(encode_frame(sent, fingerprint), fingerprint)
    assert (got.kind, got.sender, got.round, got.sequence, got.fields) == (kind, sender, round_, sequence, fields)
    assert [p.dtype for p in got.payload.parts] == [dtype for dtype, _ in drawn]
    for mine, theirs in zip(sent.payload.parts, got.payload.parts, strict=True):
        assert torch.equal(as_bytes(mine), as_bytes(theirs))


def test_long_parts_are_read_where_they_lie():
    sent = Message("push", "w", payload=Payload((torch.arange(3, dtype=torch.uint8), torch.arange(5000.0))))
    got = decode_frame(encode_frame(sent)).payload.parts[1]
    assert torch.equal(got, torch.arange(5000.0)) and got.data_ptr() % 4 == 0
    assert got.storage_offset() > 0  # a view of what was received


def test_every_single_bit_flip_is_refused():
    frame = encode_frame(message(), fingerprint=5)
    for bit in range(8 * len(frame)):
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            decode_frame(changed, fingerprint=5)


def test_a_header_cannot_be_put_before_another_frame_of_the_same_length():
    one, other = (
        encode_frame(message()),
        encode_frame(Message("push", "worker 3", 8, 12, message().fields, message().payload)),
    )
    assert len(one) == len(other)
    with pytest.raises(FrameError, match="damaged"):
        decode_frame(one[:HEADER_BYTES] + other[HEADER_BYTES:])


@pytest.mark.parametrize("claim", [2**31, 2**40, 2**63, 2**64 - 1])
def test_hostile_sizes_are_refused_from_the_header_and_cost_no_memory(claim):
    form = FORM.pack(b"thwf", 2, 0, 16, 0, 0, 0, claim)
    frame = form + struct.pack("<I", zlib.crc32(form)) + bytes(60)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    for _ in range(100):
        with pytest.raises(FrameError, match="limit") as caught:
            read_header(frame[:HEADER_BYTES])
        assert caught.value.reason == "too long"
        with pytest.raises(FrameError):
            decode_frame(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10  # KiB


def test_parts_cannot_claim_more_than_the_frame_has():
    for claim in (b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x80\x80\x80\x80\x40", b"\x05"):
        with pytest.raises(FrameError) as caught:
            decode_frame(crafted(head(codes=b"\x00"), claim + b"abcd"))
        assert caught.value.reason == "form"


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "length"),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n", "magic"),
        (bytes(100), "magic"),
        (crafted(head(), version=1), "version"),
        (crafted(head(), sealed=2), "form"),
        (crafted(head()[:-1]), "form"),
        (crafted(b""), "form"),
        (crafted(head(), round_=2**63), "form"),
        (crafted(head(kind=b"")), "form"),
        (crafted(head(kind=b"\xff")), "form"),
        (crafted(head(codes=b"\xff")), "form"),
        (crafted(head(codes=b"\x07"), b"\x03abc"), "form"),
        (crafted(b"\xff\xff\xff\xff" + bytes(4)), "form"),
        (crafted(head(), b"more"), "form"),
        (crafted(head())[:-1], "length"),
        (crafted(head()) + b"x", "length"),
        *(
            (crafted(head(text=text)), "form")
            for text in (b"", b"[]", b"{", b'{"a":NaN}', b'{"a":1e999}', b'{"a":{}}', b'{"a":[[1]]}', b'{"a":1,"a":2}',
                         b'{"a":' + b"9" * 30 + b"}", b'{"a":' + b"9" * 9000 + b"}", b"[" * 60000, b'{"a":"\\ud800"}', b"\xff")
        ),
    ],
)  # fmt: skip
def test_what_is_no_frame_is_refused_with_a_reason(frame, reason):
    with pytest.raises(FrameError) as caught:
        decode_frame(frame)
    assert caught.value.reason == reason


def mutated(rng: random.Random, frame: bytes, other: bytes) -> bytes:
    data = bytearray(frame)
    kind = rng.randrange(8)
    at = rng.randrange(len(data))
    if kind == 0:
        for _ in range(rng.choice((2, 3, 8, 40))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at:at] = rng.randbytes(rng.randrange(1, 20))
    elif kind == 3:
        data[at : at + 8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**40, 2**63, 2**64 - 1)))
    elif kind == 4:
        data[at:] = other[rng.randrange(len(other)) :]
    elif kind == 5:
        data = bytearray(rng.randbytes(rng.randrange(200)))
    elif kind == 6:  # right checksums around wrong bytes: the form alone must refuse them
        inside = bytearray(frame[HEADER_BYTES:-4])
        for _ in range(rng.choice((1, 1, 2, 6))):
            inside[rng.randrange(len(inside))] = rng.choice((0, 1, 34, 91, 123, 127, 128, 255, rng.randrange(256)))
        cut = rng.randrange(0, len(inside) + 1, 8)
        data = bytearray(crafted(bytes(inside[:cut]), bytes(inside[cut:])))
    else:
        noise = rng.randbytes(8 * rng.randrange(1, 12))
        data = bytearray(crafted(noise, rng.randbytes(rng.randrange(40))))
    return bytes(data)


def test_ten_thousand_mutated_frames_are_refused_or_harmless():
    rng = random.Random(8)
    frames = [
        bytes(encode_frame(m))
        for m in (message(), message(0), Message("~alive", "w"), Message("pull", "x", fields={"a": [1]}))
    ]
    seen, slowest = Counter(), 0.0
    for _ in range(10_000):
        data = mutated(rng, rng.choice(frames), rng.choice(frames))
        began = time.perf_counter()
        try:
            got = decode_frame(data)
        except DecodeError as error:
            seen[error.reason] += 1
        else:  # bytes with right checksums may be another frame; then it is one that could have been sent
            seen["accepted"] += data not in frames
            assert decode_frame(encode_frame(got)).fields == got.fields
            assert got.payload.num_bytes <= len(data)
        slowest = max(slowest, time.perf_counter() - began)
    assert slowest < 0.5
    assert min(seen[reason] for reason in ("magic", "checksum", "length", "form", "accepted")) > 20, seen


def test_another_fingerprint_is_refused_and_named():
    layers = [TensorSpec("w", (3,))]
    mine = fingerprint_of(layers, "topk(k=1)")
    assert mine == fingerprint_of(layers, "topk(k=1)")
    others = {
        fingerprint_of(layers, "topk(k=2)"),
        fingerprint_of([TensorSpec("v", (3,))], "topk(k=1)"),
        fingerprint_of([TensorSpec("w", (1, 3))], "topk(k=1)"),
        fingerprint_of([TensorSpec("w", (3,), torch.float16)], "topk(k=1)"),
        fingerprint_of([], "topk(k=1)"),
    }
    assert len(others | {mine}) == 6
    with pytest.raises(FrameError, match=f"{mine:016x}") as caught:
        decode_frame(encode_frame(message(), mine), mine ^ 1)
    assert caught.value.reason == "fingerprint"


def test_the_limit_follows_from_the_registered_tensors_and_has_a_cap():
    specs = [TensorSpec("w", (1000, 10)), TensorSpec("b", (10,), torch.float16)]
    frame = encode_frame(Message("push", "w", payload=Payload((torch.zeros(10_000), torch.zeros(10)))))
    assert len(frame) <= frame_limit(specs) < 20 * 10_010 + (1 << 17)
    assert frame_limit([TensorSpec("huge", (2**40,))]) == MAX_FRAME == 64 << 20
    with pytest.raises(FrameError, match="max_frame"):
        decode_frame(frame, limit=len(frame) - 1)
    assert decode_frame(frame, limit=len(frame)).kind == "push"


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": ""}, {"kind": "x" * 256}, {"kind": "\ud800"}, {"kind": 3}, {"sender": "é" * 128}, {"round": -1}, {"sequence": 2**63},
        {"round": 1.0}, {"fields": {"a": float("nan")}}, {"fields": {"a": {}}}, {"fields": {"a": 2**63}}, {"fields": {1: 2}},
        {"fields": {"a": [[1]]}}, {"fields": {"a": torch.ones(1)}},
    ],
)  # fmt: skip
def test_a_message_that_cannot_be_sent_is_an_error_when_it_is_made(wrong):
    with pytest.raises(ProtocolError, match="Message"):
        Message(**{"kind": "push", **wrong})


def test_fields_and_types_that_do_not_fit_are_an_error_of_the_sender():
    with pytest.raises(ProtocolError, match="use parts"):
        encode_frame(Message("push", fields={"a": "x" * 70_000}))
    with pytest.raises(ProtocolError, match="uint8"):
        encode_frame(Message("push", payload=Payload((torch.ones(1, dtype=torch.bool),))))


def test_the_header_is_as_the_page_says():
    frame = encode_frame(message(), fingerprint=9)
    assert FORM.unpack_from(frame) == (b"thwf", 2, 0, len(frame) - 4 - HEADER_BYTES - 2 - 17, 7, 11, 9, 19)
    assert json.loads(frame[HEADER_BYTES + 4 + 4 + 8 + 2 :].split(b"}")[0] + b"}") == message().fields


@pytest.mark.skipif(importlib.util.find_spec("atheris") is not None, reason="atheris is installed")
def test_the_fuzzer_says_what_it_lacks():
    tool = Path(__file__).parents[3] / "tools" / "fuzz_frames.py"
    done = subprocess.run([sys.executable, str(tool)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "pip install atheris" in done.stderr and "Traceback" not in done.stderr
