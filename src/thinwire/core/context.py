"""Where and when a part runs, and the keys all its randomness comes from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NewType, TypeAlias

from .requests import World

Key = NewType("Key", int)  # 64 bits; noise is a hash of (key, element), never a global generator
Plan: TypeAlias = Mapping[str, int]  # layer name -> entry of the menu


@lru_cache(maxsize=1 << 12, typed=True)  # encoder and decoder of a layer ask for the same ones
def derive_key(*words: int | str | None) -> Key:
    """A 64-bit key from words: the same on every rank, machine and Python version."""
    text = "\x1f".join([f"{type(word).__name__}:{word}" for word in words])
    return Key(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


@dataclass(frozen=True)
class Context:
    """One step as one rank sees it."""

    step: int
    world: World
    seed: int = 0
    plan: Plan = field(default_factory=dict)
    lr: float | None = None  # of the step before, where somebody told it; a clue for controllers

    def key(self, name: str, rank: int | None = None) -> Key:
        """Common to all ranks, or rank's own; every rank can derive every other's."""
        return derive_key(self.seed, self.step, name, rank)
