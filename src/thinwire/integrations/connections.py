"""Connections of a handle, opened after all checks that a rank can make alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from ..core import CompositionError, PeerLostError
from ..drivers.driver import Driver
from ..drivers.single import SingleRank
from ..drivers.torch_dist import TorchDist
from .comparison import compare_settings


def check_group(caller: str, group: Any) -> None:
    """Raise CompositionError unless group is None or a process group."""
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise CompositionError(
            f"{caller}: group must be a process group of this rank, as dist.new_group returns it, got {group!r}; leave "
            "it out for all ranks"
        )


def rank_or_zero(group: Any) -> int:
    """Return this process's rank in the group; 0 without a process group."""
    return dist.get_rank(group) if dist.is_available() and dist.is_initialized() else 0


def connect(caller: str, settings: Mapping[str, Any], timeout_s: float, group: Any = None) -> Driver:
    """Connect the ranks of the group and compare their settings; after an error nothing stays open."""
    try:
        driver = TorchDist(group, timeout_s=timeout_s)
    except RuntimeError as error:
        raise PeerLostError(
            f"{caller}: not all ranks of the group connected within timeout_s={timeout_s:g}; if {caller} failed on "
            f"another rank, the log of that rank has the reason ({str(error).splitlines()[0]})"
        ) from error
    try:
        driver.run(compare_settings(settings))
    except BaseException:
        driver.close()
        raise
    return driver


def connect_pair(timeout_s: float, group: Any, ranks: Sequence[int]) -> TorchDist:
    """Connect two ranks of the group; no other rank takes part."""
    return TorchDist(group, timeout_s=timeout_s, ranks=ranks)


def connect_or_single(caller: str, settings: Mapping[str, Any], timeout_s: float, group: Any = None) -> Driver:
    """Do as `connect`, or make a world of one rank without a process group."""
    is_distributed = dist.is_available() and dist.is_initialized()
    return connect(caller, settings, timeout_s, group) if is_distributed else SingleRank()
