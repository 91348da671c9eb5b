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

from ...core import ThinwireError

Tell = Callable[[str, int, int], None]  # what is downloaded, bytes so far, bytes in all
VARIABLE = "THINWIRE_DATA"
OFFICIAL = "the official files, checked by SHA-256"


class DataError(ThinwireError, ValueError):
    """Data are missing or are not what they should be; the text names files, folder, and what would do."""


@dataclass(frozen=True)
class Pin:
    """What a file must be."""

    nbytes: int
    sha256: str


@dataclass(frozen=True)
class Archive:
    """A .tar.gz or .zip with the files of a set below the set's folder."""

    url: str
    pin: Pin | None = None  # none: it is read where it lies, but not downloaded

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class DataSet:
    """The files of a set, in `folder` of an official archive; where to get them: from the archive, or one by one."""

    title: str
    folder: str
    files: Mapping[str, Pin]
    archive: Archive | None = None
    urls: Mapping[str, str] = field(default_factory=dict)  # by file; counts before the archive


@dataclass(frozen=True)
class Loaded:
    """Contents by file name, and whether they are the official ones."""

    files: Mapping[str, bytes]
    origin: str


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thinwire"


def load(data: DataSet, names: Sequence[str], folder: str | Path | None = None, tell: Tell | None = None) -> Loaded:
    """The contents of these files, checked. A folder that is named is the only place looked into.

    Without one: the folder THINWIRE_DATA names, then the cache; what is in neither is downloaded into the cache.
    """
    variable = os.environ.get(VARIABLE)
    places = [Path(folder)] if folder else [*([Path(variable)] if variable else []), cache_folder()]
    for place in places:
        loaded = _load_from(place.expanduser(), data, names)
        if loaded:
            return loaded
    if folder:
        raise DataError(missing(data, names, places))
    from .download import download  # late: most runs need no network

    try:
        download(data, names, cache_folder(), tell)
    except OSError as error:
        why = f"The download failed: {error}."
        raise DataError(f"{missing(data, names, places)}\n{why}") from error
    loaded = _load_from(cache_folder(), data, names)
    assert loaded, "what was just downloaded is there"
    return loaded


def missing(data: DataSet, names: Iterable[str], places: Iterable[Path]) -> str:
    """What is wanted, where it was looked for, and the ways to get it."""
    wanted = ", ".join(str(Path(data.folder, name)) for name in names)
    archive = f", or {data.archive.name}" if data.archive else ""
    absent = [f"{place}{'' if place.is_dir() else ' (no such folder)'}" for place in places]
    sources = [f"{url} (sha256 {data.files[name].sha256})" for name, url in data.urls.items()]
    if data.archive and data.archive.pin:
        sources += [f"{data.archive.url} ({data.archive.pin.nbytes:,} bytes, sha256 {data.archive.pin.sha256})"]
    lines = [
        f"{data.title}: not found in {', '.join(absent)}; wanted: {wanted}{archive}. Three ways to get it:",
        f"  1. without a named folder it is downloaded into {cache_folder()} if there is a network;",
        "  2. name the folder that has it: --data FOLDER;",
        f"  3. or set {VARIABLE}=FOLDER. Its source:",
        *(f"     {source}" for source in sources),
    ]
    return "\n".join(lines)


def _load_from(place: Path, data: DataSet, names: Sequence[str]) -> Loaded | None:
    """None if nothing of it is there; an error if only a part is."""
    for inside in (place / data.folder, place):
        there = [name for name in names if (inside / name).is_file()]
        if len(there) == len(names):
            own = own_sums(inside)
            return _checked(data, {name: (inside / name).read_bytes() for name in names}, str(inside), own)
        if there and inside != place:
            gone = ", ".join(name for name in names if name not in there)
            raise DataError(f"{data.title}: {inside} has {', '.join(there)}, but not {gone}; put all of them there")
    if data.archive and (place / data.archive.name).is_file():
        path = place / data.archive.name
        found = members(path, data, names)
        own = {name.rpartition("/")[2]: sha for name, sha in own_sums(place).items()}
        return _checked(data, found, str(path), own)
    return None


def _checked(data: DataSet, found: Mapping[str, bytes], where: str, own: Mapping[str, str]) -> Loaded:
    for name, content in found.items():
        check(f"{where}/{name}", content, own.get(name) or data.files[name])
    origin = f"not the official files: those of {where}, by its own SHA256SUMS" if set(found) & set(own) else OFFICIAL
    return Loaded(found, origin)


def check(path: str, content: bytes, wanted: Pin | str) -> None:
    """Raise DataError unless the content has the size and SHA-256 it should have."""
    if isinstance(wanted, Pin) and len(content) != wanted.nbytes:
        short = "is truncated" if len(content) < wanted.nbytes else "is too long"
        raise DataError(f"{path} {short}: expected {wanted.nbytes:,} bytes, found {len(content):,}; get it anew")
    expected = wanted.sha256 if isinstance(wanted, Pin) else wanted
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(f"{path} is not what it should be: expected sha256 {expected}, found {found}; get it anew")


def own_sums(folder: Path) -> dict[str, str]:
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


def members(path: Path, data: DataSet, names: Sequence[str]) -> dict[str, bytes]:
    """Contents of the set's files inside its archive; nothing is unpacked to disk and other members are not read."""
    wanted = {f"{data.folder}/{name}": name for name in names}
    try:
        found = dict(_zip_members(path, wanted) if path.suffix == ".zip" else _tar_members(path, wanted))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        expected = data.archive.pin if data.archive else None
        size = f": expected {expected.nbytes:,} bytes, found {path.stat().st_size:,}" if expected else ""
        raise DataError(f"{path} cannot be read ({error}){size}; get it anew") from error
    if absent := [member for member, name in wanted.items() if name not in found]:
        raise DataError(f"{path} has no {', '.join(absent)}; is it the archive of {data.title}?")
    return found


_MOST = 1 << 28  # bytes of a member; the largest official file has 154 MB


def _tar_members(path: Path, wanted: Mapping[str, str]) -> Iterable[tuple[str, bytes]]:
    left = set(wanted)
    with tarfile.open(path, "r:*") as archive:
        for member in archive:
            if member.name.removeprefix("./") not in left or not member.isfile() or member.size > _MOST:
                continue
            content = archive.extractfile(member)
            assert content is not None, "a plain file"
            left.discard(member.name.removeprefix("./"))
            yield wanted[member.name.removeprefix("./")], content.read()
            if not left:
                return


def _zip_members(path: Path, wanted: Mapping[str, str]) -> Iterable[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.filename in wanted and info.file_size <= _MOST:
                yield wanted[info.filename], archive.read(info)
