"""Fixed plan: each layer keeps the option that the user gave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core import CompositionError, Plan, TensorSpec
from .base import StaticController


@dataclass(frozen=True)
class Fixed(StaticController):
    """Give each layer the option that `plan` has for it, and `default` to all others. Sends nothing.

    Options are counted from 0. switch(topk(density=0.01), dense(), controller=fixed(plan={"head": 1})) sends the layer
    "head" dense.
    """

    default: int = 0
    plan: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if min([self.default, *self.plan.values()]) < 0:
            raise CompositionError(
                f"Fixed: options are counted from 0, got default={self.default} and plan={dict(self.plan)}"
            )

    def init(self, layers: Sequence[TensorSpec]) -> tuple[Plan, tuple[()]]:
        unknown = sorted(self.plan.keys() - {spec.name for spec in layers})
        if unknown:
            raise CompositionError(
                f"Fixed: plan names no layer of the model: {', '.join(unknown)}; layers are {[s.name for s in layers]}"
            )
        return {spec.name: self.plan.get(spec.name, self.default) for spec in layers}, ()
