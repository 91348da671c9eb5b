"""Joining the process group that `torchrun`, or who sets the same variables, has prepared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from ..core import PeerLostError
from .torch_dist import TorchDist

_PREPARED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_prepared() -> bool:
    """Whether this process was started as one rank of several."""
    return all(name in os.environ for name in _PREPARED)


def gloo_is_available() -> bool:
    return dist.is_available() and dist.is_gloo_available()


@contextmanager
def joined(timeout_s: float = 60.0) -> Iterator[TorchDist]:
    """A driver among all ranks of the group; the group is left in the end."""
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
        driver = TorchDist(timeout_s=timeout_s)
    except RuntimeError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise PeerLostError(
            f"rank {rank} of {size} could not join the others at {where} within {timeout_s:g} s: "
            f"{str(error).splitlines()[0]}"
        ) from error
    try:
        with driver:
            yield driver
    finally:
        dist.destroy_process_group()
