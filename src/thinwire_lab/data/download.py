"""Downloads: whole and checked, or not at all."""

from __future__ import annotations

import hashlib
import os
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from thinwire.core import format_bytes, write_atomically

from .datasets import Checksum, DataError, DataSet, ProgressCallback, check_content, read_members

_CHUNK = 1 << 18
_TIMEOUT_S = 30.0
_MAX_BYTES = 1 << 30  # bytes of a file whose size is not known to us


def download(data: DataSet, names: Sequence[str], folder: Path, tell: ProgressCallback | None = None) -> None:
    """These files of the set into `folder`, as its archive has them. OSError if the network does not give them."""
    tell = tell or ProgressLines()
    place = folder / data.folder
    if data.urls:
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            pin = data.files[name]
            assert pin is not None, "a file that has an address of its own has a sum"
            fetch_file(data.urls[name], pin, place / name, tell)
        return
    if data.archive is None or data.archive.pin is None:
        raise DataError(f"{data.title}: no address is known to download it from")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / data.archive.name
    fetch_file(data.archive.url, data.archive.pin, path, tell)
    pins = {name: pin for name, pin in data.files.items() if pin is not None}
    if len(pins) < len(data.files):
        return  # it stays as it is: unpacked, nobody could check all of its files again
    place.mkdir(exist_ok=True)
    for name, content in read_members(path, data, list(pins)).items():
        check_content(f"{path}/{name}", content, pins[name])
        write_atomically(place / name, content)
    path.unlink()  # its files are there now


def fetch_file(url: str, pin: Checksum, target: Path, tell: ProgressCallback) -> None:
    """The file at an address, under its name only when all of it is there and has the SHA-256 it should have."""
    part = target.with_name(f".{target.name}.part-{os.getpid()}")  # two processes may want it at once
    request = urllib.request.Request(url, headers={"User-Agent": "thinwire"})
    digest, count = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer, part.open("wb") as file:
            announced = answer.headers.get("Content-Length") or ""
            total = pin.num_bytes or (int(announced) if announced.isdecimal() else 0)
            while piece := answer.read(_CHUNK):
                count += len(piece)
                if count > (pin.num_bytes or _MAX_BYTES):
                    most = (
                        f"{pin.num_bytes:,} bytes it should have"
                        if pin.num_bytes
                        else f"{_MAX_BYTES:,} bytes that are allowed"
                    )
                    raise DataError(f"{url} gives more than the {most}; nothing was kept")
                digest.update(piece)
                file.write(piece)
                tell(url, count, total)
            file.flush()
            os.fsync(file.fileno())
        if count < total:
            raise ConnectionError(f"{url} ended after {count:,} of {total:,} bytes; nothing was kept")
        if digest.hexdigest() != pin.sha256:
            raise DataError(f"{url}: expected sha256 {pin.sha256}, found {digest.hexdigest()}; nothing was kept")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


class ProgressLines:
    """Progress as plain lines on standard error, one every few seconds. A total of 0 is one that is not known."""

    def __init__(self, every_s: float = 5.0) -> None:
        self.every_s = every_s
        self.spoken = -every_s

    def __call__(self, what: str, done: int, total: int) -> None:
        if time.monotonic() - self.spoken < self.every_s and done != total:
            return
        self.spoken = time.monotonic()
        whole = f" of {format_bytes(total)}" if total else ""
        print(f"{what}: {format_bytes(done)}{whole}", file=sys.stderr, flush=True)
