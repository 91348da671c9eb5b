"""The manifest of a checkpoint: its files with their digests, and a digest of the manifest itself."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from .. import __version__
from ..core import CheckpointError
from .files import FileDigest, read_json, to_json, write_json

MANIFEST = "manifest.json"
FORMAT = 2  # of what is written; `migration` has the names that changed since format 1
READABLE_FORMATS = (1, 2)
T = TypeVar("T")


class CheckpointName(NamedTuple):
    """The name of a checkpoint's folder. Numbers count the saves, so that the newest is always known."""

    number: int
    step: int

    def __str__(self) -> str:
        return f"save-{self.number:06d}-step-{self.step:08d}"

    @classmethod
    def of(cls, text: str) -> CheckpointName | None:
        """The name that a folder has, or None if it is not a checkpoint."""
        found = re.fullmatch(r"save-([0-9]{1,18})-step-([0-9]{1,18})", text)
        name = found and cls(int(found[1]), int(found[2]))
        return name if name and str(name) == text else None


class Manifest(NamedTuple):
    """Format, name, number of ranks, and the files of a checkpoint with their digests."""

    format: int
    name: CheckpointName
    world_size: int
    files: dict[str, FileDigest]


def rank_files(rank: int) -> tuple[str, str]:
    """The names of a rank's two files: JSON, and safetensors."""
    return f"rank-{rank:05d}.json", f"rank-{rank:05d}.safetensors"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest with its own digest."""
    fields: dict[str, Any] = {
        "format": FORMAT,
        "thinwire": __version__,
        "number": manifest.name.number,
        "step": manifest.name.step,
        "world_size": manifest.world_size,
        "files": {name: file_digest._asdict() for name, file_digest in manifest.files.items()},
    }
    write_json(folder / MANIFEST, fields | {"sha256": hashlib.sha256(to_json(fields)).hexdigest()})


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of the checkpoint in `folder`, which must have been written under that name.

    File names are derived from ranks and compared, so that none can point outside of the folder.
    """
    path = folder / MANIFEST
    fields = read_json(path)
    version = require_field(fields, "format", int, path)
    if version not in READABLE_FORMATS:
        writer, readable = fields.get("thinwire"), " and ".join(map(str, READABLE_FORMATS))
        raise CheckpointError(
            f"{path}: field 'format' is {version} (thinwire {writer!r}), this version reads {readable}"
        )
    digest = hashlib.sha256(to_json({key: value for key, value in fields.items() if key != "sha256"})).hexdigest()
    if require_field(fields, "sha256", str, path) != digest:
        raise CheckpointError(f"{path}: field 'sha256' does not match the others; edited or damaged")
    name = CheckpointName(require_field(fields, "number", int, path), require_field(fields, "step", int, path))
    if CheckpointName.of(folder.name) != name:
        raise CheckpointError(f"{path}: fields 'number' and 'step' are those of {name}, the folder is {folder.name!r}")
    world_size, files = require_field(fields, "world_size", int, path), require_field(fields, "files", dict, path)
    if world_size < 1 or len(files) != 2 * world_size:
        raise CheckpointError(f"{path}: field 'files' lists {len(files)} for {world_size} ranks, each has two")
    if odd := sorted(files.keys() ^ {name for rank in range(world_size) for name in rank_files(rank)}):
        raise CheckpointError(f"{path}: field 'files' and {world_size} ranks differ in {odd[0]!r}")
    size_field = "nbytes" if version == 1 else "num_bytes"
    return Manifest(version, name, world_size, {file: digest_in(files, file, path, size_field) for file in files})


def digest_in(fields: Any, name: str, path: Path, size_field: str = "num_bytes") -> FileDigest:
    """The digest of a file, out of a field of the manifest or of a rank's JSON."""
    entry = require_field(fields, name, dict, path)
    return FileDigest(require_field(entry, "sha256", str, path), require_field(entry, size_field, int, path))


def require_field(fields: Any, name: str, kind: type[T], path: Path) -> T:
    """The value of a field, which must exist and have this type."""
    if not isinstance(fields, dict) or name not in fields:
        raise CheckpointError(f"{path}: field {name!r} is missing")
    value = fields[name]
    if type(value) is not kind:  # not isinstance: a bool is not accepted as an int
        raise CheckpointError(f"{path}: field {name!r} is a {type(value).__name__}, must be {kind.__name__}")
    return value
