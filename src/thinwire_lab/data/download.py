"""Download data sets; a file appears only when it is complete and its SHA-256 is right."""

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
_MAX_BYTES = 1 << 30  # of a file of unknown size


def download(data: DataSet, names: Sequence[str], folder: Path, on_progress: ProgressCallback | None = None) -> None:
    """Download files of a data set into `folder`, in the layout of its archive. Raises OSError if the network fails."""
    on_progress = on_progress or ProgressLines()
    place = folder / data.folder
    if data.urls:
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            checksum = data.files[name]
            assert checksum is not None, "a file with an address has a sum"
            fetch_file(data.urls[name], checksum, place / name, on_progress)
        return
    if data.archive is None or data.archive.checksum is None:
        raise DataError(f"{data.title}: cannot be downloaded, because no address is known")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / data.archive.name
    fetch_file(data.archive.url, data.archive.checksum, path, on_progress)
    checksums = {name: checksum for name, checksum in data.files.items() if checksum is not None}
    if len(checksums) < len(data.files):
        return  # it stays packed, because files without sums could not be checked again
    place.mkdir(exist_ok=True)
    for name, content in read_members(path, data, list(checksums)).items():
        check_content(f"{path}/{name}", content, checksums[name])
        write_atomically(place / name, content)
    path.unlink()  # its files were unpacked


def fetch_file(url: str, checksum: Checksum, target: Path, on_progress: ProgressCallback) -> None:
    """Download a file to `target`; it appears there only when it is complete and has the expected SHA-256."""
    part = target.with_name(f".{target.name}.part-{os.getpid()}")  # two processes may download it at the same time
    request = urllib.request.Request(url, headers={"User-Agent": "thinwire"})
    digest, count = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer, part.open("wb") as file:
            announced = answer.headers.get("Content-Length") or ""
            total = checksum.num_bytes or (int(announced) if announced.isdecimal() else 0)
            while piece := answer.read(_CHUNK):
                count += len(piece)
                if count > (checksum.num_bytes or _MAX_BYTES):
                    expected = (
                        f"{checksum.num_bytes:,} bytes expected" if checksum.num_bytes else f"{_MAX_BYTES:,} allowed"
                    )
                    raise DataError(f"{url} sends more than the {expected}; the download was deleted")
                digest.update(piece)
                file.write(piece)
                on_progress(url, count, total)
            file.flush()
            os.fsync(file.fileno())
        if count < total:
            raise ConnectionError(f"{url} ended after {count:,} of {total:,} bytes; the download was deleted")
        if digest.hexdigest() != checksum.sha256:
            raise DataError(
                f"{url}: expected sha256 {checksum.sha256}, found {digest.hexdigest()}; the download was deleted"
            )
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


class ProgressLines:
    """Progress as plain lines on standard error, one every few seconds. A total of 0 means unknown."""

    def __init__(self, every_s: float = 5.0) -> None:
        self.every_s = every_s
        self.last_line_s = -every_s

    def __call__(self, what: str, done: int, total: int) -> None:
        if time.monotonic() - self.last_line_s < self.every_s and done != total:
            return
        self.last_line_s = time.monotonic()
        whole = f" of {format_bytes(total)}" if total else ""
        print(f"{what}: {format_bytes(done)}{whole}", file=sys.stderr, flush=True)
