"""Checkpoints in tests: states of ranks, saving them together, damage to one bit, comparing to the last bit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from helpers.cases import draw
from thinwire import checkpoint


def same(a: object, b: object) -> bool:
    """Equal in structure, types of numbers and keys, order and bits."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and (a.dtype, a.shape) == (b.dtype, b.shape) and bits(a) == bits(b)
    if isinstance(a, dict):
        return type(b) is dict and [*map(typed, a)] == [*map(typed, b)] and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


def typed(key: object) -> tuple[type, object]:
    return type(key), key


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().reshape(-1).contiguous().view(torch.uint8).tolist()) if tensor.numel() else b""


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def on_ranks(size: int, work: Callable[[int, Callable[[], object]], Any]) -> list[Any]:
    """work(rank, barrier) on so many threads; what each returned or raised."""
    barrier = threading.Barrier(size, timeout=10)
    out: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            out[rank] = work(rank, barrier.wait)
        except Exception as error:
            out[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


def state_of(rank: int, step: int = 1) -> dict[str, Any]:
    return {"residual": draw("gaussian", (5, 7), seed=10 * step + rank), "rank": rank, "step": step}


def save_together(
    folder: Path, size: int, step: int = 1, state: Callable[[int, int], dict[str, Any]] = state_of
) -> list[Any]:
    def save(rank: int, barrier: Callable[[], object]) -> Path:
        return checkpoint.save(folder, state(rank, step), step=step, rank=rank, world_size=size, barrier=barrier)

    return on_ranks(size, save)
