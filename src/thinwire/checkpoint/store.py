"""Save and load checkpoints. A new one is written to a temporary folder and gets its name by one rename."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ..core import CheckpointError
from ..core.logs import get_logger
from .files import digest_of, file_size, fsync_folder, read_json, read_tensors, system_errors, write_json, write_tensors
from .manifest import (
    FORMAT,
    CheckpointName,
    Manifest,
    digest_in,
    rank_files,
    read_manifest,
    require_field,
    write_manifest,
)
from .migration import migrate
from .tree import decode, encode

log = get_logger(__name__)

_SAVING = ".saving"  # folder of an incomplete checkpoint; there is at most one
_DELETING = ".deleting-"


def save(
    folder: str | PathLike[str],
    state: Mapping[Any, Any],
    *,
    step: int | None = None,
    keep: int = 2,
    rank: int = 0,
    world_size: int = 1,
    barrier: Callable[[], object] | None = None,
) -> Path:
    """Store a nested state atomically; when this returns, it is on the disk.

    Nothing older is touched until the new checkpoint is complete. After a crash at any time `load` finds the new
    checkpoint or the one before it. Several ranks with a shared file system write one checkpoint together: each rank
    calls this with its own state.

    Args:
        folder: The folder of all checkpoints of a run; created if it does not exist.
        state: Nested dicts, lists and tuples of tensors, numbers, strings, booleans and None.
        step: Step of the checkpoint, the same on all ranks; None counts the saves.
        keep: Number of checkpoints to keep; older ones are deleted after the new one is complete.
        rank: This rank.
        world_size: Number of ranks that write this checkpoint.
        barrier: Returns when all ranks have called it; needed if world_size is above 1. It is called three times, also
            after an error, so that an error of one rank is an error on all ranks.

    Returns:
        The folder of the new checkpoint.

    Raises:
        CheckpointError: Something cannot be written or stored, or another rank failed; the previous one remains.
        ValueError: An argument is not valid.

    Example:
        ```python
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "thinwire": handle.state_dict()}
        checkpoint.save("checkpoints", state, step=step, rank=rank, world_size=size, barrier=dist.barrier)
        ```
    """
    if world_size > 1 and barrier is None:
        raise ValueError(
            f"checkpoint.save: {world_size} ranks write one checkpoint together and need `barrier`, that of their "
            "process group"
        )
    if not 0 <= rank < world_size or keep < 1 or (step is not None and not 0 <= step < 10**18):
        got = f"rank={rank}, world_size={world_size}, keep={keep}, step={step}"
        raise ValueError(
            f"checkpoint.save: 0 <= rank < world_size, keep >= 1 and 0 <= step < 10**18 are required, got {got}"
        )
    saving = _Saving(Path(folder), state, step, keep, rank, world_size)
    failure: Exception | None = None
    for phase in (saving.prepare, saving.write, saving.complete):
        if failure is None:
            try:
                phase()
            except Exception as error:  # of any kind: the other ranks are waiting at the barrier
                failure = error
        if barrier is not None:
            barrier()
    if failure is not None:
        saving.clear_away()
        raise failure
    return saving.confirmed()


@dataclass
class _Saving:
    folder: Path
    state: Mapping[Any, Any]
    step: int | None
    keep: int
    rank: int
    world_size: int
    target: Path | None = None

    @property
    def aside(self) -> Path:
        """The temporary folder."""
        return self.folder / _SAVING

    def prepare(self) -> None:
        """Rank 0 makes an empty temporary folder, so that nothing of a crashed attempt gets into this one."""
        if self.rank != 0:
            return
        with system_errors(self.aside):
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True)
                fsync_folder(self.folder.absolute().parent)
            if self.aside.exists():
                shutil.rmtree(self.aside)
            self.aside.mkdir()

    def write(self) -> None:
        """Each rank writes its tensors, then their digest and the rest of its state."""
        number = max((name.number for name in _names(self.folder)), default=0) + 1
        self.target = self.folder / str(CheckpointName(number, number if self.step is None else self.step))
        tree, tensors = encode(self.state)
        json_name, tensors_name = rank_files(self.rank)
        file_digest = write_tensors(self.aside / tensors_name, tensors)
        write_json(self.aside / json_name, {"save": self.target.name, "tensors": file_digest._asdict(), "state": tree})

    def complete(self) -> None:
        """Rank 0 writes the manifest, renames the folder, then deletes old checkpoints."""
        if self.rank != 0 or self.target is None:
            return
        name = CheckpointName.of(self.target.name)
        assert name is not None
        files = {}
        for rank in range(self.world_size):
            json_name, tensors_name = rank_files(rank)
            path = self.aside / json_name
            if not path.exists():
                raise CheckpointError(
                    f"{path}: rank {rank} of {self.world_size} has not written it; see the error of that rank"
                )
            part = read_json(path)
            if (other := require_field(part, "save", str, path)) != self.target.name:
                raise CheckpointError(
                    f"{path}: rank {rank} saves {other}, rank 0 saves {self.target.name}; ranks must pass the same step"
                )
            files[json_name], files[tensors_name] = digest_of(path), digest_in(part, "tensors", path)
        write_manifest(self.aside, Manifest(FORMAT, name, self.world_size, files))
        fsync_folder(self.aside)
        with system_errors(self.target):
            self.aside.rename(self.target)
        fsync_folder(self.folder)
        _delete_all_but(self.keep, self.folder)

    def confirmed(self) -> Path:
        """The folder of the complete checkpoint; CheckpointError if another rank failed."""
        if self.target is None or not self.target.exists():
            raise CheckpointError(f"{self.target}: not completed; see the error of rank 0 or of another rank")
        return self.target

    def clear_away(self) -> None:
        """Delete the temporary folder."""
        if self.rank == 0:
            shutil.rmtree(self.aside, ignore_errors=True)


def _delete_all_but(keep: int, folder: Path) -> None:
    try:
        for name in _names(folder)[:-keep]:
            (folder / str(name)).rename(folder / f"{_DELETING}{name}")  # a partly deleted one must not look complete
        for path in folder.glob(f"{_DELETING}*"):
            shutil.rmtree(path)
    except OSError as error:  # the new checkpoint is complete, so the run goes on
        log.warning("checkpoint: could not delete an old checkpoint: %s", error)


def steps(folder: str | PathLike[str]) -> list[int]:
    """Return the steps of the checkpoints in a folder.

    Args:
        folder: The folder of all checkpoints of a run.

    Returns:
        The steps, in the order in which they were saved; [] if there are none.
    """
    return [name.step for name in _names(Path(folder))]


def _names(folder: Path) -> list[CheckpointName]:
    with system_errors(folder):
        found = [CheckpointName.of(path.name) for path in folder.iterdir()] if folder.exists() else []
    return sorted(name for name in found if name is not None)


def load(
    folder: str | PathLike[str],
    *,
    step: int | None = None,
    fallback: bool = False,
    rank: int = 0,
    world_size: int | None = 1,
) -> dict[Any, Any]:
    """Load the state that was saved last, or last at `step`.

    Args:
        folder: The folder of all checkpoints of a run.
        step: Step of the checkpoint; None: the one that was saved last.
        fallback: If the checkpoint is damaged, load the one that was saved before it, with a warning in the log. Each
            rank then checks the files of all ranks, so that all load the same.
        rank: This rank.
        world_size: Number of ranks that saved the checkpoint; None accepts any number.

    Returns:
        The state of this rank, bit for bit. Tensors are on the CPU and do not share memory.

    Raises:
        CheckpointError: There is no checkpoint, or it is damaged or of another world size; the text has file and field.
    """
    folder = Path(folder)
    names = _names(folder)
    while names and step is not None and names[-1].step != step:
        names.pop()
    if not names:
        problem = "no checkpoint" if step is None else f"no checkpoint of step {step}; there are {steps(folder)}"
        raise CheckpointError(f"{folder}: {problem}")
    path, manifest = _newest_intact(folder, names, fallback, rank)
    if not 0 <= rank < manifest.world_size or world_size not in (None, manifest.world_size):
        ours = f"this is rank {rank} of {manifest.world_size if world_size is None else world_size}"
        raise CheckpointError(f"{path}: field 'world_size' is {manifest.world_size}, {ours}")
    json_name, tensors_name = rank_files(rank)
    part = read_json(path / json_name)
    try:
        state = decode(require_field(part, "state", dict, path / json_name), read_tensors(path / tensors_name))
    except ValueError as error:
        raise CheckpointError(f"{path / json_name}: {error}") from error
    return migrate(state) if manifest.format == 1 else state


def _newest_intact(folder: Path, names: list[CheckpointName], fallback: bool, rank: int) -> tuple[Path, Manifest]:
    errors: list[CheckpointError] = []
    for name in reversed(names):
        path = folder / str(name)
        try:
            manifest = _read_verified_manifest(path, None if fallback else rank)
        except CheckpointError as error:
            if not fallback:
                raise
            log.warning("checkpoint: %s; falling back to the one before", error)
            errors.append(error)
        else:
            return path, manifest
    raise CheckpointError(f"{folder}: all checkpoints are damaged: {'; '.join(map(str, errors))}", errors[0].errno)


def _read_verified_manifest(path: Path, rank: int | None) -> Manifest:
    """Its manifest, if all files have their sizes and those of the rank (None: of all ranks) have their digests."""
    manifest = read_manifest(path)
    for name, file_digest in manifest.files.items():
        if (num_bytes := file_size(path / name)) != file_digest.num_bytes:
            raise CheckpointError(
                f"{path / name}: field 'num_bytes' is {file_digest.num_bytes}, the file has {num_bytes} bytes"
            )
    for name in manifest.files if rank is None else manifest.files.keys() & set(rank_files(rank)):
        if digest_of(path / name) != manifest.files[name]:
            raise CheckpointError(f"{path / name}: field 'sha256' does not match the file, which was changed")
    return manifest
