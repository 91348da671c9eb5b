"""Large matrices are compressed, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from ..core import Capabilities, Capability, Choices, CompositionError, IncompatibleParts, Plan, TensorSpec
from .deciding import Settled


@dataclass(frozen=True)
class BySize(Settled):
    """The first of two entries for matrices of at least `elements`, unless named in `but`; the other for the rest.

    switch(topk(density=0.01), dense(), by=by_size()) compresses large matrices that are no part of an attention. `but`
    holds patterns as of file names. Never changes its mind, never talks. The rule of TAGC.
    """

    capabilities: ClassVar[Capabilities] = Settled.capabilities | frozenset({Capability.TAKES_MENUS})

    elements: int = 100_000
    but: tuple[str, ...] = ("*attn*", "*attention*")

    def __post_init__(self) -> None:
        if self.elements < 1:
            raise CompositionError(f"BySize: elements must be at least 1, got {self.elements}; 100000 is usual")
        if not all(isinstance(pattern, str) for pattern in self.but):
            raise CompositionError(f'BySize: but holds patterns of names, got {self.but}; but=("*attn*",) would do')

    def given(self, choices: Choices) -> BySize:
        for spec, menu in choices:
            if len(menu.entries) != 2:
                raise IncompatibleParts(
                    f"BySize chooses one of two, the menu of {spec.name} has {len(menu.entries)}; "
                    "use switch(topk(density=0.01), dense(), by=by_size())"
                )
        return self

    def init(self, layers: Sequence[TensorSpec]) -> tuple[Plan, tuple[()]]:
        return {spec.name: int(not self.compresses(spec)) for spec in layers}, ()

    def compresses(self, spec: TensorSpec) -> bool:
        named = any(fnmatchcase(spec.name, pattern) for pattern in self.but)
        return len(spec.shape) >= 2 and spec.numel >= self.elements and not named
