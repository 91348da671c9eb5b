"""Measure the memory that a piece of code allocates: torch tensors, and the peak of numpy and Python."""

from __future__ import annotations

import resource
import sys
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..core.torch_private import dispatch_mode


class Allocations(dispatch_mode()):  # type: ignore[misc]
    """Context manager: `num_bytes` is the sum over all tensors that torch makes, plus the peak of numpy and Python.

    Tensors count even if they are freed inside. warm: whether torch has dispatched before.
    """

    def __init__(self, warm: bool = False) -> None:
        super().__init__()
        self.num_bytes, self.warm = 0, warm

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler at the first operation, which takes seconds and memory

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
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self.num_bytes += tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


@cache
def warm_up() -> None:
    """Dispatch once, so that torch's imports at the first dispatch are not counted."""

    with Allocations(warm=True):
        torch.zeros(1).nonzero()


def resident_peak_bytes() -> int:
    """Peak resident memory of this process in bytes; Linux reports kilobytes, macOS bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
