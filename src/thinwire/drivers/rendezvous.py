"""Join the process group described by the environment variables of `torchrun`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from ..core import PeerLostError
from .torch_dist import TorchDist

_TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_torchrun() -> bool:
    """Whether the environment has the variables of `torchrun`: this process is one rank of a group."""
    return all(name in os.environ for name in _TORCHRUN_VARIABLES)


def gloo_is_available() -> bool:
    """Whether this build of torch has the gloo backend."""
    return dist.is_available() and dist.is_gloo_available()


@contextmanager
def init_from_env(timeout_s: float = 60.0) -> Iterator[TorchDist]:
    """Initialize the gloo process group from the environment; yield a driver for all its ranks; destroy it at the end.

    Raises:
        PeerLostError: the other ranks could not be reached within `timeout_s`.
    """
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
        driver = TorchDist(timeout_s=timeout_s)
    except RuntimeError as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise PeerLostError(
            f"rank {rank} of {size} could not join the process group at {address} within {timeout_s:g} s: "
            f"{str(error).splitlines()[0]}"
        ) from error
    try:
        with driver:
            yield driver
    finally:
        dist.destroy_process_group()
