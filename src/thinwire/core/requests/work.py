"""Work: the program computes for some seconds. Drivers with a virtual clock advance it; others ignore it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .base import Label, Request, World


@dataclass(frozen=True, eq=False)
class Work(Request):
    """Answered with None. Nothing is sent; `seconds` may differ between ranks."""

    seconds: float
    labels: tuple[Label, ...] = ()
    step: int = 0

    on_wire = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise ValueError(f"Work: seconds must be finite and not negative, got {self.seconds}")

    def describe_form(self) -> str:
        return "Work"

    def contributes(self, world: World) -> bool:
        return False

    def merge_key(self) -> tuple[str, ...]:
        return ("Work",)

    def merge(self, batch: Sequence[Work]) -> Work:
        """The sum: one rank computes one thing after another."""
        return replace(self, seconds=sum(request.seconds for request in batch))

    def split(self, batch: Sequence[Work], answer: Any) -> list[None]:
        return [None] * len(batch)

    def answer_alone(self) -> None:
        return None
