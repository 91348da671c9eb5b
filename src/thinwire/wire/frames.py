"""A message as one run of bytes on a socket, and the refusal of all others. docs/frames.md has it byte by byte.

Nothing is believed before it is checked: first the header alone (magic, version, its own checksum, lengths within the
limit), then the checksum over everything, then the form. Only then do tensors exist, as views of what was received.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import DecodeError, FrameError, Message, ProtocolError, TensorSpec, derive_key
from .framing import lengths_bytes, pack_payload, unpack_payload

_FINGERPRINT_KEY = "frames"  # frozen: enters every fingerprint

MAGIC = b"thwf"
VERSION = 1
MAX_FRAME = 64 << 20  # bytes of a whole frame, unless another limit is given
_FORM = struct.Struct("<4sBBHQQQQ")  # magic, version, sealed, head bytes, round, sequence, fingerprint, body bytes
_SUM = struct.Struct("<I")
_HEAD = struct.Struct("<BBH")  # bytes of kind, bytes of sender, number of parts
HEADER_BYTES = _FORM.size + _SUM.size
_MAX_HEAD = 0xFFF8
_ALIGN = 8  # the body begins at a multiple of it after the header, so that long parts are read where they lie
DTYPES = (  # a part's type is its place here: append, never reorder. No bool: most bytes are none
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}


class FrameHeader(NamedTuple):
    """What can be known before the rest has arrived; `rest_bytes` are still to come, and a tag if it is `sealed`."""

    sealed: bool
    head_bytes: int
    round: int
    sequence: int
    fingerprint: int
    body_bytes: int
    checksum: int

    @property
    def rest_bytes(self) -> int:
        return self.head_bytes + self.body_bytes + _SUM.size


def fingerprint_of(specs: Iterable[TensorSpec], *settings: int | str) -> int:
    """64 bits that two sides share if their layers (names, shapes, types) and settings are the same."""
    layers = [[spec.name, list(spec.shape), str(spec.dtype)] for spec in specs]
    return derive_key(_FINGERPRINT_KEY, json.dumps(layers), *settings)


def frame_limit(specs: Iterable[TensorSpec], cap: int = MAX_FRAME) -> int:
    """Bytes that suffice for these tensors: every element with eight bytes for its place or share of a norm.

    And for their names and shapes, which a worker tells when it joins.
    """
    layers = ((spec.numel * (spec.dtype.itemsize + 8), 6 * len(spec.name) + 64) for spec in specs)
    return min(cap, (1 << 17) + sum(numbers + words for numbers, words in layers))


def encode_frame(message: Message, fingerprint: int = 0, sealed: bool = False) -> bytearray:
    """FrameHeader, head, body, checksum. A sealed frame is followed by a tag that the driver makes."""
    head = _head_of(message)
    body_bytes = message.payload.num_bytes + lengths_bytes(message.payload)
    form = _FORM.pack(MAGIC, VERSION, sealed, len(head), message.round, message.sequence, fingerprint, body_bytes)
    checksum = zlib.crc32(form)
    start = HEADER_BYTES + len(head)
    frame = bytearray(start + body_bytes + _SUM.size)
    frame[:start] = form + _SUM.pack(checksum) + head
    if body_bytes:
        pack_payload(message.payload, torch.frombuffer(frame, dtype=torch.uint8, offset=start, count=body_bytes))
    # It goes on from the form's own checksum: over form and checksum together it would forget which form that was.
    with memoryview(frame) as whole:
        total = zlib.crc32(whole[HEADER_BYTES : -_SUM.size], checksum)
    frame[-_SUM.size :] = _SUM.pack(total)
    return frame


def decode_frame(data: bytes | bytearray, fingerprint: int | None = 0, limit: int = MAX_FRAME) -> Message:
    """The message of a whole frame without its tag, or a FrameError."""
    header = read_header(data[:HEADER_BYTES], fingerprint, limit)
    if len(data) != HEADER_BYTES + header.rest_bytes:
        raise FrameError("length", f"a frame of {HEADER_BYTES + header.rest_bytes} bytes has {len(data)}")
    return read_rest(header, bytearray(data[HEADER_BYTES:]))


def read_header(data: bytes | bytearray, fingerprint: int | None = 0, limit: int = MAX_FRAME) -> FrameHeader:
    """The first HEADER_BYTES of a frame, checked; `fingerprint` None takes any."""
    if len(data) < HEADER_BYTES:
        raise FrameError("length", f"a header has {HEADER_BYTES} bytes, got {len(data)}")
    magic, version, sealed, head, round_, sequence, theirs, body = _FORM.unpack_from(data)
    (checksum,) = _SUM.unpack_from(data, _FORM.size)
    if magic != MAGIC:
        raise FrameError("magic", f"a frame begins with {MAGIC!r}, got {bytes(magic)!r}; not a thinwire peer")
    if zlib.crc32(data[: _FORM.size]) != checksum:
        raise FrameError("checksum", "a frame's header was changed on the way")
    if version != VERSION:
        raise FrameError("version", f"frames have version {VERSION} here, the peer's {version}; run the same thinwire")
    if HEADER_BYTES + head + body + _SUM.size > limit:
        num_bytes = HEADER_BYTES + head + body + _SUM.size
        raise FrameError("too long", f"a frame announces {num_bytes} bytes, the limit is {limit}; raise max_frame")
    if sealed > 1 or head < _HEAD.size or head % _ALIGN:
        raise FrameError("form", f"no frame is written with flag {sealed} and a head of {head} bytes")
    if fingerprint is not None and theirs != fingerprint:
        raise FrameError(
            "fingerprint", f"the peer's model or settings have fingerprint {theirs:016x}, ours {fingerprint:016x}"
        )
    return FrameHeader(bool(sealed), head, round_, sequence, theirs, body, checksum)


def check_rest(header: FrameHeader, rest: bytearray) -> None:
    """The checksum over form, head and body."""
    if len(rest) != header.rest_bytes:
        raise FrameError("length", f"{header.rest_bytes} bytes were to follow a header, got {len(rest)}")
    with memoryview(rest) as view:
        total = zlib.crc32(view[: -_SUM.size], header.checksum)
    if total != _SUM.unpack_from(rest, len(rest) - _SUM.size)[0]:
        raise FrameError("checksum", "a frame was changed on the way")


def read_rest(header: FrameHeader, rest: bytearray) -> Message:
    """The message; its tensors are views of `rest`, which nobody may change any more."""
    check_rest(header, rest)
    return parse_rest(header, rest)


def parse_rest(header: FrameHeader, rest: bytearray) -> Message:
    """`read_rest` for who has checked the checksum."""
    try:
        kind, sender, dtypes, fields = _read_head(bytes(rest[: header.head_bytes]))
        payload = unpack_payload(_body(header, rest), dtypes)
        return Message(kind, sender, header.round, header.sequence, fields, payload)
    except FrameError:
        raise
    except (DecodeError, ProtocolError) as error:
        raise FrameError("form", str(error)) from error


def _body(header: FrameHeader, rest: bytearray) -> Tensor:
    if not header.body_bytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(rest, dtype=torch.uint8, offset=header.head_bytes, count=header.body_bytes)


def _head_of(message: Message) -> bytes:
    kind, sender, parts = message.kind.encode(), message.sender.encode(), message.payload.parts
    unknown = [part.dtype for part in parts if part.dtype not in _CODES]
    if unknown:
        raise ProtocolError(f"frames carry {', '.join(map(str, DTYPES))}, got {unknown[0]}; send bits as uint8")
    codes = bytes(_CODES[part.dtype] for part in parts)
    text = json.dumps(dict(message.fields), separators=(",", ":"), allow_nan=False).encode()
    num_bytes = _HEAD.size + len(kind) + len(sender) + len(codes) + len(text)
    if num_bytes > _MAX_HEAD:
        raise ProtocolError(
            f"fields and types of {message.kind!r} take {num_bytes} bytes, at most {_MAX_HEAD}: use parts"
        )
    fill = b" " * (-num_bytes % _ALIGN)  # JSON does not mind
    return _HEAD.pack(len(kind), len(sender), len(codes)) + kind + sender + codes + text + fill


def _read_head(head: bytes) -> tuple[str, str, Sequence[torch.dtype], dict[str, Any]]:
    lengths, at, texts = _HEAD.unpack_from(head), _HEAD.size, []
    if at + sum(lengths) > len(head):
        raise FrameError("form", f"a head of {len(head)} bytes announces {at + sum(lengths)}")
    for length in lengths:
        texts.append(head[at : at + length])
        at += length
    if any(code >= len(DTYPES) for code in texts[2]):
        raise FrameError("form", f"types are numbered 0 to {len(DTYPES) - 1}, got {max(texts[2])}")
    try:
        fields = json.loads(head[at:].decode(), object_pairs_hook=_distinct)
        kind, sender = texts[0].decode(), texts[1].decode()
    except (ValueError, RecursionError) as error:  # what is no JSON or no UTF-8, or far too deep
        raise FrameError("form", "the head of a frame cannot be read") from error
    if not isinstance(fields, dict):
        raise FrameError("form", "the fields of a frame are no JSON object")
    return kind, sender, [DTYPES[code] for code in texts[2]], fields


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object each of whose names occurs once; two readers must not read two things."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found
