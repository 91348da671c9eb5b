"""Frames: messages as byte strings on a socket. docs/frames.md describes the format.

A frame is checked in this order: the header (magic, version, its own checksum, lengths within the limit), the checksum
of everything, the content. Only then are tensors made, as views of the received bytes.
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
VERSION = 2  # 1 had other kinds, fields and composition texts
MAX_FRAME = 64 << 20  # bytes of a whole frame, by default
_FORM = struct.Struct("<4sBBHQQQQ")  # magic, version, sealed, head bytes, round, sequence, fingerprint, body bytes
_SUM = struct.Struct("<I")
_HEAD = struct.Struct("<BBH")  # bytes of kind, bytes of sender, number of parts
HEADER_BYTES = _FORM.size + _SUM.size
_MAX_HEAD = 0xFFF8
_ALIGN = 8  # the body begins at a multiple of it after the header, so that long parts are read without a copy
DTYPES = (  # the code of a type is its index: append, never reorder. No bool: most bytes are not valid ones
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}


class FrameHeader(NamedTuple):
    """The header of a frame; `rest_bytes` follow it, and a tag if it is `sealed`."""

    sealed: bool
    head_bytes: int
    round: int
    sequence: int
    fingerprint: int
    body_bytes: int
    checksum: int

    @property
    def rest_bytes(self) -> int:
        """Bytes after the header, without a tag."""
        return self.head_bytes + self.body_bytes + _SUM.size


def fingerprint_of(specs: Iterable[TensorSpec], *settings: int | str) -> int:
    """A 64-bit hash of layers (names, shapes, types) and settings, for comparison between two sides."""
    layers = [[spec.name, list(spec.shape), str(spec.dtype)] for spec in specs]
    return derive_key(_FINGERPRINT_KEY, json.dumps(layers), *settings)


def frame_limit(specs: Iterable[TensorSpec], cap: int = MAX_FRAME) -> int:
    """Bytes that suffice for a frame with these tensors: each element with eight more bytes for its position or norm.

    Names and shapes, which a worker sends when it joins, are included.
    """
    layers = ((spec.numel * (spec.dtype.itemsize + 8), 6 * len(spec.name) + 64) for spec in specs)
    return min(cap, (1 << 17) + sum(numbers + words for numbers, words in layers))


def encode_frame(message: Message, fingerprint: int = 0, sealed: bool = False) -> bytearray:
    """Header, head, body, checksum. A sealed frame is followed by a tag that the driver computes."""
    head = _head_of(message)
    body_bytes = message.payload.num_bytes + lengths_bytes(message.payload)
    form = _FORM.pack(MAGIC, VERSION, sealed, len(head), message.round, message.sequence, fingerprint, body_bytes)
    checksum = zlib.crc32(form)
    start = HEADER_BYTES + len(head)
    frame = bytearray(start + body_bytes + _SUM.size)
    frame[:start] = form + _SUM.pack(checksum) + head
    if body_bytes:
        pack_payload(message.payload, torch.frombuffer(frame, dtype=torch.uint8, offset=start, count=body_bytes))
    # Continues from the form's checksum: over form and checksum together, a CRC would not depend on the form.
    with memoryview(frame) as whole:
        total = zlib.crc32(whole[HEADER_BYTES : -_SUM.size], checksum)
    frame[-_SUM.size :] = _SUM.pack(total)
    return frame


def decode_frame(data: bytes | bytearray, fingerprint: int | None = 0, limit: int = MAX_FRAME) -> Message:
    """The message of a whole frame without its tag.

    Raises:
        FrameError: the frame is damaged, too long, or not for this server.
    """
    header = read_header(data[:HEADER_BYTES], fingerprint, limit)
    if len(data) != HEADER_BYTES + header.rest_bytes:
        raise FrameError("length", f"a frame of {HEADER_BYTES + header.rest_bytes} bytes has {len(data)}")
    return read_rest(header, bytearray(data[HEADER_BYTES:]))


def read_header(data: bytes | bytearray, fingerprint: int | None = 0, limit: int = MAX_FRAME) -> FrameHeader:
    """Read and check the first HEADER_BYTES of a frame; `fingerprint` None accepts any."""
    if len(data) < HEADER_BYTES:
        raise FrameError("length", f"a frame's header has {HEADER_BYTES} bytes, got {len(data)}")
    magic, version, sealed, head, round_, sequence, theirs, body = _FORM.unpack_from(data)
    (checksum,) = _SUM.unpack_from(data, _FORM.size)
    if magic != MAGIC:
        raise FrameError("magic", f"a frame begins with {MAGIC!r}, got {bytes(magic)!r}; not a thinwire peer")
    if zlib.crc32(data[: _FORM.size]) != checksum:
        raise FrameError("checksum", "a frame's header is damaged")
    if version != VERSION:
        raise FrameError(
            "version",
            f"frames have version {VERSION} here, {version} at the peer; use one version of thinwire",
        )
    if HEADER_BYTES + head + body + _SUM.size > limit:
        num_bytes = HEADER_BYTES + head + body + _SUM.size
        raise FrameError("too long", f"a frame announces {num_bytes} bytes, the limit is {limit}; raise max_frame")
    if sealed > 1 or head < _HEAD.size or head % _ALIGN:
        raise FrameError("form", f"a frame cannot have the flag {sealed} and a head of {head} bytes")
    if fingerprint is not None and theirs != fingerprint:
        raise FrameError(
            "fingerprint", f"the peer's model or settings have fingerprint {theirs:016x}, ours {fingerprint:016x}"
        )
    return FrameHeader(bool(sealed), head, round_, sequence, theirs, body, checksum)


def check_rest(header: FrameHeader, rest: bytearray) -> None:
    """Check the checksum of header, head and body."""
    if len(rest) != header.rest_bytes:
        raise FrameError("length", f"{header.rest_bytes} bytes must follow the header, got {len(rest)}")
    with memoryview(rest) as view:
        total = zlib.crc32(view[: -_SUM.size], header.checksum)
    if total != _SUM.unpack_from(rest, len(rest) - _SUM.size)[0]:
        raise FrameError("checksum", "a frame is damaged")


def read_rest(header: FrameHeader, rest: bytearray) -> Message:
    """The message; its tensors are views of `rest`, which must not be changed afterwards."""
    check_rest(header, rest)
    return parse_rest(header, rest)


def parse_rest(header: FrameHeader, rest: bytearray) -> Message:
    """`read_rest` without checking the checksum again."""
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
    fill = b" " * (-num_bytes % _ALIGN)  # JSON ignores spaces
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
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deep
        raise FrameError("form", "the head of a frame cannot be read") from error
    if not isinstance(fields, dict):
        raise FrameError("form", "the fields of a frame are not a JSON object")
    return kind, sender, [DTYPES[code] for code in texts[2]], fields


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without duplicate names, which other readers might read differently."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name occurs twice")
    return fields
