"""Where data sets are: a folder that is named, THINWIRE_DATA, the cache, or a download into it. Every byte is checked.

Files lie as in the official archive, or inside that archive, which need not be unpacked. A folder with a file
SHA256SUMS (as sha256sum writes it) has its own version of a set: its sums then count, and `origin` says so.
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

ProgressCallback = Callable[[str, int, int], None]  # what is downloaded, bytes so far, bytes in all
VARIABLE = "THINWIRE_DATA"
OFFICIAL = "the official files, checked by SHA-256"


class DataError(ThinwireError, ValueError):
    """Data are missing or are not what they should be; the text names files, folder, and what would do."""


@dataclass(frozen=True)
class Checksum:
    """What a file must be."""

    num_bytes: int | None  # none: not known to us; the sum alone counts
    sha256: str

    def __str__(self) -> str:
        return f"sha256 {self.sha256}" if self.num_bytes is None else f"{self.num_bytes:,} bytes, sha256 {self.sha256}"


@dataclass(frozen=True)
class Archive:
    """A .tar.gz or .zip with the files of a set below the set's folder."""

    url: str
    pin: Checksum | None = None  # none: it is read where it lies, but not downloaded

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class DataSet:
    """The files of a set, in `folder` of an official archive; where to get them: from the archive, or one by one."""

    title: str
    folder: str
    files: Mapping[str, Checksum | None]  # none: known only as a part of the archive, which is checked as a whole
    archive: Archive | None = None
    urls: Mapping[str, str] = field(default_factory=dict)  # by file; counts before the archive
    most: int = 1 << 28  # bytes of a file inside the archive; the largest of CIFAR has 154 MB


@dataclass(frozen=True)
class LoadedFiles:
    """Contents by file name, and whether they are the official ones."""

    files: Mapping[str, bytes]
    origin: str


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thinwire"


def search_folders(folder: str | Path | None = None) -> list[Path]:
    """Where sets are looked for: in the folder that is named, else where THINWIRE_DATA says, then in the cache."""
    if folder:
        return [Path(folder).expanduser()]
    variable = os.environ.get(VARIABLE)
    return [*([Path(variable).expanduser()] if variable else []), cache_folder()]


def load(
    data: DataSet, names: Sequence[str], folder: str | Path | None = None, tell: ProgressCallback | None = None
) -> LoadedFiles:
    """The contents of these files, checked. A folder that is named is the only place looked into.

    Without one: the folder THINWIRE_DATA names, then the cache; what is in neither is downloaded into the cache.
    """
    tried = search_folders(folder)
    for place in tried:
        loaded = _load_from(place, data, names)
        if loaded:
            return loaded
    if folder:
        raise DataError(describe_missing(data, names, tried))
    from .download import download  # late: most runs need no network

    try:
        download(data, names, cache_folder(), tell)
    except OSError as error:
        why = f"The download failed: {error}."
        raise DataError(f"{describe_missing(data, names, tried)}\n{why}") from error
    loaded = _load_from(cache_folder(), data, names)
    assert loaded, "what was just downloaded is there"
    return loaded


def is_available(data: DataSet, folder: str | Path | None = None) -> bool:
    """Whether `load` would find all of it without a download. Nothing is read; a part of it is an error here, too."""
    return any(_locate(place, data, list(data.files)) for place in search_folders(folder))


def describe_folders(tried: Iterable[Path]) -> str:
    """The places where nothing was, in words."""
    return ", ".join(f"{place}{'' if place.is_dir() else ' (no such folder)'}" for place in tried)


def describe_missing(data: DataSet, names: Iterable[str], tried: Iterable[Path]) -> str:
    """What is wanted, where it was looked for, and the ways to get it."""
    wanted = ", ".join(str(Path(data.folder, name)) for name in names)
    archive = f", or {data.archive.name}" if data.archive else ""
    sources = [f"{url} ({data.files[name]})" for name, url in data.urls.items()]
    if data.archive and data.archive.pin:
        sources += [f"{data.archive.url} ({data.archive.pin})"]
    lines = [
        f"{data.title}: not found in {describe_folders(tried)}; wanted: {wanted}{archive}. Three ways to get it:",
        f"  1. without a named folder it is downloaded into {cache_folder()} if there is a network;",
        "  2. name the folder that has it: --data FOLDER;",
        f"  3. or set {VARIABLE}=FOLDER. Its source:",
        *(f"     {source}" for source in sources),
    ]
    return "\n".join(lines)


def _locate(place: Path, data: DataSet, names: Sequence[str]) -> Path | None:
    """The folder the files are in, or the archive; none if nothing of it is there; an error if only a part is."""
    for inside in (place / data.folder, place):
        there = [name for name in names if (inside / name).is_file()]
        if len(there) == len(names):
            return inside
        if there and inside != place:
            gone = ", ".join(name for name in names if name not in there)
            raise DataError(f"{data.title}: {inside} has {', '.join(there)}, but not {gone}; put all of them there")
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
    assert archive is not None, "files without sums come out of an archive"
    return (
        f"{data.title}: {folder} has {', '.join(names)}, whose own sums are not known, only that of {archive.name} "
        f"({archive.pin}). Put the archive there instead of the folder, it need not be unpacked; or let the folder "
        f"vouch for its files: cd {folder} && sha256sum {' '.join(names)} > SHA256SUMS"
    )


def check_archive(path: Path, data: DataSet) -> None:
    """Raise DataError unless the archive as a whole has the SHA-256 it should have."""
    pin = data.archive.pin if data.archive else None
    assert pin is not None, "files without sums come out of an archive that has one"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    if digest.hexdigest() != pin.sha256:
        raise DataError(
            f"{path} is not what it should be: expected sha256 {pin.sha256}, found {digest.hexdigest()}; get it anew"
        )


def check_content(path: str, content: bytes, wanted: Checksum | str) -> None:
    """Raise DataError unless the content has the size and SHA-256 it should have."""
    if isinstance(wanted, Checksum) and wanted.num_bytes is not None and len(content) != wanted.num_bytes:
        short = "is truncated" if len(content) < wanted.num_bytes else "is too long"
        raise DataError(f"{path} {short}: expected {wanted.num_bytes:,} bytes, found {len(content):,}; get it anew")
    expected = wanted.sha256 if isinstance(wanted, Checksum) else wanted
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(f"{path} is not what it should be: expected sha256 {expected}, found {found}; get it anew")


def read_checksums(folder: Path) -> dict[str, str]:
    """SHA-256 by name out of a folder's own SHA256SUMS; none if there is no such file."""
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
    """Contents of the set's files inside its archive; nothing is unpacked to disk and other members are not read."""
    wanted = {f"{data.folder}/{name}": name for name in names}
    try:
        read = _zip_members if path.suffix == ".zip" else _tar_members
        found = dict(read(path, wanted, data.most))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        expected = data.archive.pin.num_bytes if data.archive and data.archive.pin else None
        size = f": expected {expected:,} bytes, found {path.stat().st_size:,}" if expected else ""
        raise DataError(f"{path} cannot be read ({error}){size}; get it anew") from error
    if gone := [member for member, name in wanted.items() if name not in found]:
        raise DataError(f"{path} has no {', '.join(gone)}; is it the archive of {data.title}?")
    return found


def _tar_members(path: Path, wanted: Mapping[str, str], most: int) -> Iterable[tuple[str, bytes]]:
    left = set(wanted)
    with tarfile.open(path, "r:*") as archive:
        for member in archive:
            if member.name.removeprefix("./") not in left or not member.isfile() or member.size > most:
                continue
            content = archive.extractfile(member)
            assert content is not None, "a plain file"
            left.discard(member.name.removeprefix("./"))
            yield wanted[member.name.removeprefix("./")], content.read()
            if not left:
                return


def _zip_members(path: Path, wanted: Mapping[str, str], most: int) -> Iterable[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.filename in wanted and info.file_size <= most:
                yield wanted[info.filename], archive.read(info)
