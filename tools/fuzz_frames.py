"""Coverage-guided fuzzing of frames: `python tools/fuzz_frames.py -max_total_time=60` (needs `pip install atheris`).

Half of the inputs are used as they are; in the others the checksums are corrected first, because a fuzzer cannot guess
them and would never reach the code behind them. Any exception but DecodeError ends the run. Options are libFuzzer's:
-runs=1000000 for a nightly run, -rss_limit_mb=1024 to limit memory.
"""

from __future__ import annotations

import struct
import sys
import tempfile
import zlib
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit("fuzz_frames: atheris is not installed; pip install atheris (Linux, CPython up to 3.13)")

import torch

with atheris.instrument_imports(include=["thinwire.wire", "thinwire.core.messages", "json"]):
    from thinwire.core import DecodeError, Message, Payload
    from thinwire.wire import decode_frame, encode_frame
    from thinwire.wire.frames import HEADER_BYTES

SEEDS = [
    Message(
        "push", "worker 3", 7, 11, {"loss": 0.5, "layers": ["a", None]}, Payload((torch.arange(3.0), torch.ones(2)))
    ),
    Message("~alive", "w"),
    Message("pull", "x", 2**62, 1, {"accepted": True, "text": "ü"}, Payload((torch.arange(5, dtype=torch.uint8),))),
]
seen = {"inputs": 0, "accepted": 0, "refused": 0}


def correct_checksums(data: bytes) -> bytes:
    if len(data) < HEADER_BYTES + 4:
        return data
    form, inside = bytearray(data[: HEADER_BYTES - 4]), data[HEADER_BYTES:-4]
    form[:6] = b"thwf\x02\x00"
    (head,) = struct.unpack_from("<H", form, 6)
    head = min(head, len(inside)) // 8 * 8
    struct.pack_into("<H", form, 6, head)
    struct.pack_into("<QQ", form, 24, 0, len(inside) - head)
    start = zlib.crc32(form)
    return bytes(form) + struct.pack("<I", start) + inside + struct.pack("<I", zlib.crc32(inside, start))


def test_one_input(data: bytes) -> None:
    seen["inputs"] += 1
    data = correct_checksums(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    try:
        message = decode_frame(data)
    except DecodeError:
        seen["refused"] += 1
        return
    seen["accepted"] += 1
    again = decode_frame(encode_frame(message))  # an accepted frame could have been sent
    assert (again.kind, again.sender, again.fields) == (message.kind, message.sender, message.fields)
    assert message.payload.num_bytes <= len(data)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="fuzz_frames_"))
    for number, message in enumerate(SEEDS):
        for right in (b"\x00", b"\x01"):
            (folder / f"{number}{right.hex()}").write_bytes(right + bytes(encode_frame(message)))
    atheris.Setup([sys.argv[0], "-max_len=512", *sys.argv[1:], str(folder)], test_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    import atexit

    atexit.register(lambda: print(f"fuzz_frames: {seen}"))
    main()
