"""Agreement between ranks: texts of all ranks, and an action that fails on all ranks if it fails on one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from ..core import AllGather, CheckpointError, GatheredPayloads, Label, Payload, Program
from ..drivers.driver import Driver

T = TypeVar("T")


def gather_texts(text: str) -> Program[list[str]]:
    """Return the texts of all ranks, in rank order."""
    raw = text.encode()
    own = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.zeros(0, dtype=torch.uint8)
    gathered: GatheredPayloads = yield AllGather(Payload((own,)), (Label("", "settings", len(raw), 8.0 * len(raw)),))
    return [bytes(payload.parts[0].tolist()).decode() for payload in gathered]


def load_alike(driver: Driver, load: Callable[[], T]) -> T:
    """Run `load`, which sends nothing, on each rank; all ranks call this alike.

    Raises:
        CheckpointError: On ranks where it succeeded, if it failed on another one; that one raises its own error.
    """
    try:
        loaded, failure = load(), None
    except Exception as error:  # of any kind: the other ranks are waiting
        loaded, failure = None, error
    texts = driver.run(gather_texts("" if failure is None else f"{type(failure).__name__}: {failure}"))
    if failure is not None:
        raise failure
    if failed := [rank for rank, text in enumerate(texts) if text]:
        raise CheckpointError(f"{list_ranks(failed)} could not load a state, first: {texts[failed[0]]}")
    return loaded  # type: ignore[return-value]


def list_ranks(ranks: Sequence[int], max_ranks: int = 8) -> str:
    """Return "rank 1" or "ranks 1, 2", for a message; of many the first and their number."""
    more = f", ... ({len(ranks)} in all)" if len(ranks) > max_ranks else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:max_ranks]))}{more}"
