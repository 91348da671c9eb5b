"""Files of a checkpoint: durable writing, and reading with checks of size and digest."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import CheckpointError

JSON_LIMIT = 16 << 20  # bytes, enough for a hundred thousand tensors; JSON is read before its digest is known
_CHUNK = 1 << 20
CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class FileDigest(NamedTuple):
    """Digest and size of a file."""

    sha256: str
    num_bytes: int


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a CheckpointError with its errno and file."""
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "no errno")
        raise CheckpointError(f"{error.filename or path}: {error.strerror or error} ({name})", error.errno) from error


def to_json(value: Any) -> bytes:
    """The canonical JSON of a value; a file with other bytes was edited."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def write_json(path: Path, value: Any) -> None:
    """Write canonical JSON and flush it to disk."""
    data = to_json(value)
    if len(data) > JSON_LIMIT:
        raise CheckpointError(f"{path}: {len(data)} bytes of JSON, at most {JSON_LIMIT}; put long lists into tensors")
    with system_errors(path), path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileDigest:
    """Write tensors as safetensors and flush them to disk; one at a time is copied to the CPU.

    Without the library, which reports a full disk by a text that differs between versions.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # each starts at a multiple of its size
    header, num_bytes = {}, 0
    for name, tensor in ordered:
        start, num_bytes = num_bytes, num_bytes + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, num_bytes]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with system_errors(path), path.open("xb") as file:
        for chunk in chain([len(text).to_bytes(8, "little"), text], *(_chunks(tensor) for _, tensor in ordered)):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return FileDigest(digest.hexdigest(), 8 + len(text) + num_bytes)


def _chunks(tensor: Tensor) -> Iterator[bytes]:
    """Copies, so that digest and file have the same bytes even if the tensor is changed meanwhile."""
    if tensor.numel():
        raw = tensor.resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        for start in range(0, len(raw), _CHUNK):
            yield raw[start : start + _CHUNK].tobytes()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors into memory of their own; the library checks the header against the file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except (SafetensorError, RuntimeError, ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise CheckpointError(f"{path}: not a valid safetensors file: {error}") from error


def fsync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    with system_errors(folder):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL:  # not supported by this file system
                raise
        finally:
            os.close(handle)


def file_size(path: Path) -> int:
    """The size of a regular file; links and pipes are refused."""
    with system_errors(path):
        status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: not a regular file")
    return status.st_size


def digest_of(path: Path) -> FileDigest:
    """Digest and size of a file's content."""
    digest, num_bytes = hashlib.sha256(), 0
    buffer = memoryview(bytearray(_CHUNK))
    with system_errors(path), path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            num_bytes += count
    return FileDigest(digest.hexdigest(), num_bytes)


def read_json(path: Path) -> Any:
    """Read canonical JSON; a file that `write_json` would have written otherwise is a CheckpointError."""
    if (num_bytes := file_size(path)) > JSON_LIMIT:
        raise CheckpointError(f"{path}: {num_bytes} bytes of JSON, at most {JSON_LIMIT}")
    with system_errors(path), path.open("rb") as file:
        data = file.read(num_bytes)
    try:
        value = json.loads(data)
        unchanged = to_json(value) == data
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not unchanged:
        raise CheckpointError(f"{path}: edited or damaged: it is not in the form in which it was written")
    return value
