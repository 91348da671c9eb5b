"""Data sets in this package: xz files (see ATTRIBUTION.md), checked when they are read."""

from __future__ import annotations

import hashlib
import lzma
from importlib.resources import files


def read_embedded_text(name: str, file: str, sha256: str) -> str:
    """The decompressed text of a file. sha256: of the text."""
    packed = files(__package__).joinpath(file).read_bytes()
    try:
        data = lzma.decompress(packed)
    except lzma.LZMAError as error:
        raise ValueError(f"{name}: the embedded file cannot be decompressed ({error}); reinstall thinwire") from error
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise ValueError(f"{name}: the embedded text has sha256 {found}, expected {sha256}; reinstall thinwire")
    return data.decode("ascii")
