"""Loading a handle's state from a torch.distributed.checkpoint (DCP) of any number of ranks.

Each rank stores its own state, so `dcp.load({"thinwire": handle})` needs as many ranks as have saved. `load_dcp` reads
the states of all ranks if their number has changed, and `load_state_dict` converts them for this number of ranks.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from ..checkpoint import migrate
from ..core import CheckpointError, World, list_some
from ..drivers.driver import Driver
from .rank_agreement import load_alike


class StatefulHandle(Protocol):
    """The handle of `attach`, `local` or `moments.average`."""

    @property
    def driver(self) -> Driver:
        """The driver of this rank."""

    def state_dict(self, gather: bool = False) -> dict[str, Any]:
        """Return the state of this rank, or of all ranks."""

    def load_state_dict(self, state: dict[str, Any], strict: bool = True) -> list[str]:
        """Load a state; return what was dropped."""


def load_dcp(
    handle: StatefulHandle, folder: str | PathLike[str], key: str = "thinwire", strict: bool = True
) -> list[str]:
    """Load a handle's state from a `torch.distributed.checkpoint`, also of another number of ranks.

    With another number of ranks, each starts with the mean of all residuals. All ranks call this alike, and an error is
    raised on all of them. torch unpickles `.metadata` and plain objects of the checkpoint: load only checkpoints that
    you trust.

    Args:
        handle: The handle of `attach`, `local` or `moments.average`, with the composition it was saved with.
        folder: The `checkpoint_id` of `dcp.save`.
        key: The name under which the handle was saved: "thinwire" for `dcp.save({"thinwire": handle})`.
        strict: As in `handle.load_state_dict`.

    Returns:
        What was dropped, as `handle.load_state_dict` returns it.

    Raises:
        CheckpointError: The folder has no such checkpoint, or nothing under that key.

    Example:
        ```python
        dcp.save({"model": model.module.state_dict(), "thinwire": handle}, checkpoint_id=folder)  # on 4 ranks
        thinwire.load_dcp(handle, folder)  # on 2 ranks
        ```
    """
    state = load_alike(handle.driver, lambda: read_dcp(folder, key, handle.driver.world))
    forms = [own for rank, own in handle.state_dict().items() if rank.startswith("rank")]
    for rank in [name for name in state if name.startswith("rank")]:
        _add_empty(state[rank], forms[0])
    return handle.load_state_dict(state, strict)


def _add_empty(state: dict[str, Any], form: Mapping[str, Any]) -> None:
    """Restore empty mappings: DCP stores leaves only."""
    for name, inside in form.items():
        if isinstance(inside, Mapping):
            own = state.setdefault(name, {})
            if name != "pending_rounds":  # those of the form are its own
                _add_empty(own, inside)


def read_dcp(folder: str | PathLike[str], key: str, world: World) -> dict[str, Any]:
    """Return what a rank of this world needs of a handle's state, nested as it was saved: its own part, or all.

    Each rank reads on its own.
    """
    reader = FileSystemReader(folder)
    try:
        metadata = reader.read_metadata()
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot read a torch.distributed.checkpoint: {error}", error.errno) from None
    paths: dict[str, tuple[Any, ...]] = metadata.planner_data or {}
    stored = {name: kind for name, kind in metadata.state_dict_metadata.items() if paths.get(name, ("",))[0] == key}
    if not stored:
        keys = sorted({str(path[0]) for path in paths.values()})
        raise CheckpointError(f"{folder}: nothing is stored under {key!r}; there is {list_some(keys) or 'nothing'}")
    ranks = {name: str(paths[name][1]) for name in stored if len(paths[name]) > 1}
    common = {name: kind for name, kind in stored.items() if not ranks.get(name, "").startswith("rank")}
    state = _read(reader, common, paths)
    own = f"rank{world.rank}"
    is_own_enough = state.get("world_size") == world.size and own in ranks.values()
    wanted = {n: kind for n, kind in stored.items() if n not in common and (ranks[n] == own or not is_own_enough)}
    migrated: dict[str, Any] = migrate(state | _read(reader, wanted, paths))
    return migrated


def _read(reader: FileSystemReader, stored: Mapping[str, Any], paths: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Read these entries, and nest them by their paths without the first key."""
    flat: dict[str, Any] = {
        name: torch.empty(kind.size, dtype=kind.properties.dtype) if isinstance(kind, TensorStorageMetadata) else 0
        for name, kind in stored.items()
    }
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # no_dist is meant
            load(flat, storage_reader=reader, no_dist=True)
    except CheckpointException as error:  # a BaseException
        raise CheckpointError(f"{reader.path}: {error}") from error
    state: dict[str, Any] = {}
    for name, value in flat.items():
        inside = state
        *outer, last = paths[name][1:]
        for step in outer:
            inside = inside.setdefault(step, {})
        inside[last] = value
    return state
