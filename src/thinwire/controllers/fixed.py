"""The same plan for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core import CompositionError, Plan, TensorSpec
from .deciding import Settled


@dataclass(frozen=True)
class Fixed(Settled):
    """Give each layer the menu entry named for it, and `default` to the others. Never changes its mind, never talks."""

    default: int = 0
    entries: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if min([self.default, *self.entries.values()]) < 0:
            raise CompositionError(f"Fixed: menu entries count from 0, got {self.default} and {dict(self.entries)}")

    def init(self, layers: Sequence[TensorSpec]) -> tuple[Plan, tuple[()]]:
        unknown = sorted(self.entries.keys() - {spec.name for spec in layers})
        if unknown:
            raise CompositionError(
                f"Fixed: no layer is called {', '.join(unknown)}; there are {[s.name for s in layers]}"
            )
        return {spec.name: self.entries.get(spec.name, self.default) for spec in layers}, ()
