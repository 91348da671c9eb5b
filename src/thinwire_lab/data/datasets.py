"""Locate data sets: in a given folder, in $THINWIRE_DATA, in the cache, or by download. Every file is checked.

A folder contains the files as the official archive does, or the archive itself, packed. A folder with a file SHA256SUMS
(as sha256sum writes it) has its own version of a set: its sums are used, and `origin` says so.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from thinwire.core import ThinwireError

ProgressCallback = Callable[[str, int, int], None]  # address, bytes so far, bytes in total
VARIABLE = "THINWIRE_DATA"
OFFICIAL = "the official files, checked by SHA-256"


class DataError(ThinwireError, ValueError):
    """Data are missing or damaged. The text names the files, the folder and how to get them."""


@dataclass(frozen=True)
class Checksum:
    """Expected size and SHA-256 of a file."""

    num_bytes: int | None  # None: not known; only the sum is checked
    sha256: str

    def __str__(self) -> str:
        return f"sha256 {self.sha256}" if self.num_bytes is None else f"{self.num_bytes:,} bytes, sha256 {self.sha256}"


@dataclass(frozen=True)
class Archive:
    """A .tar.gz or .zip that contains the files of a set in the set's folder."""

    url: str
    checksum: Checksum | None = None  # None: it is read if it is there, but not downloaded

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class DataSet:
    """The files of a data set, in `folder` of its official archive, and the addresses of archive or single files."""

    title: str
    folder: str
    files: Mapping[str, Checksum | None]  # None: no sum of its own; the archive is checked as a whole
    archive: Archive | None = None
    urls: Mapping[str, str] = field(default_factory=dict)  # by file; used instead of the archive
    max_file_bytes: int = 1 << 28  # of a file in the archive; the largest of CIFAR has 154 MB


@dataclass(frozen=True)
class LoadedFiles:
    """Contents by file name. origin: whether they are the official files."""

    files: Mapping[str, bytes]
    origin: str


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thinwire"


def search_folders(folder: str | Path | None = None) -> list[Path]:
    """The folders that are searched: the given one, else $THINWIRE_DATA and the cache."""
    if folder:
        return [Path(folder).expanduser()]
    variable = os.environ.get(VARIABLE)
    return [*([Path(variable).expanduser()] if variable else []), cache_folder()]


def load(
    data: DataSet, names: Sequence[str], folder: str | Path | None = None, on_progress: ProgressCallback | None = None
) -> LoadedFiles:
    """Read files of a data set and check them.

    Args:
        data: the data set.
        names: its files to read.
        folder: the only folder that is searched; None: $THINWIRE_DATA, then the cache, then a download into the cache.
        on_progress: receives the progress of a download; None: lines on standard error.

    Raises:
        DataError: files are missing, damaged or incomplete, or the download failed.
    """
    tried = search_folders(folder)
    for place in tried:
        loaded = _load_from(place, data, names)
        if loaded:
            return loaded
    if folder:
        raise DataError(describe_missing(data, names, tried))
    from .download import download  # imported here, because most runs need no network

    try:
        download(data, names, cache_folder(), on_progress)
    except OSError as error:
        why = f"The download failed: {error}."
        raise DataError(f"{describe_missing(data, names, tried)}\n{why}") from error
    loaded = _load_from(cache_folder(), data, names)
    assert loaded, "just downloaded"
    return loaded


def is_available(data: DataSet, folder: str | Path | None = None) -> bool:
    """Whether `load` would find all files without a download. Reads nothing; an incomplete set raises DataError."""
    return any(_locate(place, data, list(data.files)) for place in search_folders(folder))


def describe_folders(tried: Iterable[Path]) -> str:
    """The searched folders, for errors."""
    return ", ".join(f"{place}{'' if place.is_dir() else ' (no such folder)'}" for place in tried)


def describe_missing(data: DataSet, names: Iterable[str], tried: Iterable[Path]) -> str:
    """An error text: the missing files, the searched folders and the ways to get the files."""
    wanted = ", ".join(str(Path(data.folder, name)) for name in names)
    archive = f", or {data.archive.name}" if data.archive else ""
    sources = [f"{url} ({data.files[name]})" for name, url in data.urls.items()]
    if data.archive and data.archive.checksum:
        sources += [f"{data.archive.url} ({data.archive.checksum})"]
    lines = [
        f"{data.title}: not found in {describe_folders(tried)}; needed: {wanted}{archive}. Three ways to get it:",
        f"  1. without --data it is downloaded into {cache_folder()}, if there is a network;",
        "  2. use a folder that contains it: --data FOLDER;",
        f"  3. set {VARIABLE}=FOLDER. Official source:",
        *(f"     {source}" for source in sources),
    ]
    return "\n".join(lines)


def _locate(place: Path, data: DataSet, names: Sequence[str]) -> Path | None:
    """The folder that has the files, or the archive; None if there is neither; DataError if files are missing."""
    for inside in (place / data.folder, place):
        there = [name for name in names if (inside / name).is_file()]
        if len(there) == len(names):
            return inside
        if there and inside != place:
            gone = ", ".join(name for name in names if name not in there)
            raise DataError(
                f"{data.title}: {inside} has {', '.join(there)}, but {gone} is missing; put all of them there"
            )
    path = place / data.archive.name if data.archive else None
    return path if path and path.is_file() else None


def _load_from(place: Path, data: DataSet, names: Sequence[str]) -> LoadedFiles | None:
    path = _locate(place, data, names)
    if path is None:
        return None
    own = read_checksums(path if path.is_dir() else place)
    if path.is_dir():
        unknown = [name for name in names if data.files[name] is None and name not in own]
        if unknown:
            raise DataError(_describe_unchecked(data, path, unknown))
        return _check_files(data, {name: (path / name).read_bytes() for name in names}, path, own)
    own = {name.rpartition("/")[2]: sha for name, sha in own.items()}
    if any(data.files[name] is None and name not in own for name in names):
        check_archive(path, data)
    return _check_files(data, read_members(path, data, names), path, own)


def _check_files(data: DataSet, found: Mapping[str, bytes], where: Path, own: Mapping[str, str]) -> LoadedFiles:
    for name, content in found.items():
        if wanted := own.get(name) or data.files[name]:  # else the archive was checked as a whole
            check_content(f"{where}/{name}", content, wanted)
    origin = f"not the official files: those of {where}, by its own SHA256SUMS" if set(found) & set(own) else OFFICIAL
    return LoadedFiles(found, origin)


def _describe_unchecked(data: DataSet, folder: Path, names: Sequence[str]) -> str:
    archive = data.archive
    assert archive is not None, "files without sums are in an archive"
    return (
        f"{data.title}: {folder} has {', '.join(names)}, which cannot be checked: only the sum of {archive.name} is "
        f"known ({archive.checksum}). Put the packed archive there instead, or create a SHA256SUMS file: "
        f"cd {folder} && sha256sum {' '.join(names)} > SHA256SUMS"
    )


def check_archive(path: Path, data: DataSet) -> None:
    """Raise DataError unless the archive has the expected SHA-256."""
    checksum = data.archive.checksum if data.archive else None
    assert checksum is not None, "an archive of files without sums has one"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    if digest.hexdigest() != checksum.sha256:
        raise DataError(
            f"{path} is damaged or another file: expected sha256 {checksum.sha256}, found {digest.hexdigest()}; "
            "download it again"
        )


def check_content(path: str, content: bytes, wanted: Checksum | str) -> None:
    """Raise DataError unless the content has the expected size and SHA-256."""
    if isinstance(wanted, Checksum) and wanted.num_bytes is not None and len(content) != wanted.num_bytes:
        short = "is truncated" if len(content) < wanted.num_bytes else "is too long"
        raise DataError(
            f"{path} {short}: expected {wanted.num_bytes:,} bytes, found {len(content):,}; download it again"
        )
    expected = wanted.sha256 if isinstance(wanted, Checksum) else wanted
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(
            f"{path} is damaged or another file: expected sha256 {expected}, found {found}; download it again"
        )


def read_checksums(folder: Path) -> dict[str, str]:
    """SHA-256 by file name from a folder's SHA256SUMS; empty if there is no such file."""
    path = folder / "SHA256SUMS"
    if not path.is_file():
        return {}
    sums = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        sha, _, name = line.strip().partition(" ")
        if len(sha) != 64 or not name:
            raise DataError(
                f"{path}: line {number} is not 'sha256  name': {line!r}; `sha256sum FILES` writes such lines"
            )
        sums[name.strip().lstrip("*")] = sha.lower()
    return sums


def read_members(path: Path, data: DataSet, names: Sequence[str]) -> dict[str, bytes]:
    """Contents of files in the archive. Nothing is unpacked to disk."""
    wanted = {f"{data.folder}/{name}": name for name in names}
    try:
        read = _zip_members if path.suffix == ".zip" else _tar_members
        found = dict(read(path, wanted, data.max_file_bytes))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        expected = data.archive.checksum.num_bytes if data.archive and data.archive.checksum else None
        size = f": expected {expected:,} bytes, found {path.stat().st_size:,}" if expected else ""
        raise DataError(f"{path} cannot be read ({error}){size}; download it again") from error
    if gone := [member for member, name in wanted.items() if name not in found]:
        raise DataError(f"{path} has no {', '.join(gone)}; is it the archive of {data.title}?")
    return found


def _tar_members(path: Path, wanted: Mapping[str, str], max_bytes: int) -> Iterable[tuple[str, bytes]]:
    left = set(wanted)
    with tarfile.open(path, "r:*") as archive:
        for member in archive:
            if member.name.removeprefix("./") not in left or not member.isfile() or member.size > max_bytes:
                continue
            content = archive.extractfile(member)
            assert content is not None, "a plain file"
            left.discard(member.name.removeprefix("./"))
            yield wanted[member.name.removeprefix("./")], content.read()
            if not left:
                return


def _zip_members(path: Path, wanted: Mapping[str, str], max_bytes: int) -> Iterable[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.filename in wanted and info.file_size <= max_bytes:
                yield wanted[info.filename], archive.read(info)
