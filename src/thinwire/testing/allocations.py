"""How much memory a piece of code asks for: torch's tensors, and numpy's and Python's peak."""

from __future__ import annotations

import resource
import sys
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the bytes of every tensor that torch makes, freed or not; numpy's and Python's peak comes on top."""

    def __init__(self, warm: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes, self.warm = 0, warm

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler at the first operation: seconds, and memory that is not ours

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor):
                self.num_bytes += tensor.nbytes
        return made

    def __enter__(self) -> Allocations:
        if not self.warm:
            warm_up()
        tracemalloc.start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self.num_bytes += tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


@cache
def warm_up() -> None:
    """What torch imports for its first dispatch is no decoder's doing."""

    with Allocations(warm=True):
        torch.zeros(1).nonzero()


def resident_peak_bytes() -> int:
    """The most memory that this process ever had; Linux counts kilobytes, macOS bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
