"""Connections of a handle: opened when everything that one rank can check alone has been checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from ..core import CompositionError, PeerLostError
from ..drivers.driver import Driver
from ..drivers.single import SingleRank
from ..drivers.torch_dist import TorchDist
from .agreement import agree_on


def check_group(caller: str, group: Any) -> None:
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise CompositionError(
            f"{caller}: group must be a process group that this rank belongs to, as dist.new_group gives it, got "
            f"{group!r}; leave it out for all ranks"
        )


def rank_in(group: Any) -> int:
    """This process's rank; 0 without a process group."""
    return dist.get_rank(group) if dist.is_available() and dist.is_initialized() else 0


def open_agreed(caller: str, facts: Mapping[str, Any], timeout_s: float, group: Any = None) -> Driver:
    """Connections among the ranks of the group, which hold the same facts; else an error, and nothing stays open."""
    try:
        driver = TorchDist(group, timeout_s=timeout_s)
    except RuntimeError as error:
        raise PeerLostError(
            f"{caller}: not all ranks of the group connected within timeout_s={timeout_s:g}; if {caller} was refused "
            f"on another rank, its own log says why ({str(error).splitlines()[0]})"
        ) from error
    try:
        driver.run(agree_on(facts))
    except BaseException:
        driver.close()
        raise
    return driver


def open_pair(timeout_s: float, group: Any, ranks: Sequence[int]) -> TorchDist:
    """Connections between two ranks of the group; no third one takes part."""
    return TorchDist(group, timeout_s=timeout_s, ranks=ranks)


def open_or_alone(caller: str, facts: Mapping[str, Any], timeout_s: float, group: Any = None) -> Driver:
    """`open_agreed`, or a world of one where there is no process group."""
    together = dist.is_available() and dist.is_initialized()
    return open_agreed(caller, facts, timeout_s, group) if together else SingleRank()
