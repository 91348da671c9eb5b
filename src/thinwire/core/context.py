"""The context of one step on one rank, and the keys from which all randomness is derived."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NewType, TypeAlias

from .requests import World

Key = NewType("Key", int)  # 64 bits; noise is a hash of (key, element), never a global generator
Plan: TypeAlias = Mapping[str, int]  # layer name -> index of the chosen option in its menu


@lru_cache(maxsize=1 << 12, typed=True)  # encoder and decoder of a layer derive the same keys
def derive_key(*words: int | str | None) -> Key:
    """A 64-bit key from words: the same on every rank, machine and Python version.

    The words make the random bits. Literal words are frozen constants: changing one changes every result.
    """
    text = "\x1f".join([f"{type(word).__name__}:{word}" for word in words])
    return Key(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


@dataclass(frozen=True)
class Context:
    """One step on one rank: step number, world, seed, plan, learning rate."""

    step: int
    world: World
    seed: int = 0
    plan: Plan = field(default_factory=dict)
    lr: float | None = None  # the last learning rate that the caller gave, for controllers
    can_flatten: bool = False  # whether `fuse` runs this layer with others, so that parts may yield FlattenLayers
    nonfinite: list[str] = field(default_factory=list, compare=False)  # layers that a batch found to have NaN or Inf

    def key(self, name: str, rank: int | None = None) -> Key:
        """A key common to all ranks, or that of one rank; every rank can derive the keys of all ranks."""
        return derive_key(self.seed, self.step, name, rank)

    def keys(self, names: Sequence[str], rank: int) -> LayerKeys:
        """The keys of several layers of a rank; one is derived when it is read, since not every part needs keys."""
        return LayerKeys(self, names, rank)


class LayerKeys(Sequence[Key]):
    """The keys of several layers of a rank."""

    def __init__(self, ctx: Context, names: Sequence[str], rank: int) -> None:
        self._ctx, self._names, self._rank = ctx, names, rank

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, at: Any) -> Any:
        names = self._names[at]
        return [self[i] for i in range(len(self))[at]] if isinstance(at, slice) else self._ctx.key(names, self._rank)
