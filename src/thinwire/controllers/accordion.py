"""Accordion: low compression while a layer's gradients change fast, or the learning rate has just dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import AllReduce, Choices, CompositionError, Context, Plan, Program, reduce_labels
from .deciding import agreed
from .gathering import Gathered, Gathers, check_settings
from .rungs import low_and_high


class Norms(NamedTuple):
    """What the last decision knew."""

    lr: float  # 0: nobody said
    old: Tensor  # float64, one a layer; below 0: not seen yet


@dataclass(frozen=True)
class Accordion(Gathers):
    """Compress a layer little while the norm of its gradients changes by `eta` or more from period to period.

    All layers are compressed little in the first two periods, and after a learning rate that fell by the share `eta`
    or more. Norms are of the mean over `every` exchanges, in the mean over ranks. "Little" is the entry that sends
    about `low` times as much as what is written, "much" is `high` times; of two entries, the dearer and the cheaper.
    Accordion, arXiv 2010.16248.
    """

    eta: float = 0.5
    every: int = 500
    low: float = 2.0
    high: float = 0.5
    choices: Choices = field(default=(), repr=False)

    look_at = "pure"

    def __post_init__(self) -> None:
        check_settings(self, ("every",), {})
        if not 0 < self.eta < float("inf"):
            raise CompositionError(f"Accordion: eta, a relative change, must be above 0, got {self.eta}; 0.5 is usual")
        if not 0 < self.high <= self.low < float("inf"):
            raise CompositionError(
                f"Accordion: high compression sends no more than low, got high={self.high} and low={self.low}"
            )

    @property
    def start(self) -> int:  # type: ignore[override]
        return self.every

    @property
    def window(self) -> int:  # type: ignore[override]
        return self.every

    def _own(self) -> Norms:
        return Norms(0.0, torch.full((len(self.choices),), -1.0, dtype=torch.float64))

    def replan(self, plan: Plan, state: Gathered, ctx: Context) -> Program[tuple[Plan, Gathered]]:
        if self.choices and state.begun == 0:
            state = state._replace(own=state.own._replace(lr=_known(ctx.lr)))
            everywhere = torch.ones(len(self.choices), dtype=torch.bool)
            plan = {**plan, **(yield from agreed(self._entries(everywhere, ctx), self.choices))}
        return (yield from super().replan(plan, state, ctx))

    def _decided(self, plan: Plan, state: Gathered, ctx: Context) -> Program[tuple[Plan, Norms]]:
        before: Norms = state.own
        new = yield from _norms(state, ctx)
        lr = _known(ctx.lr)
        dropped = 0 < lr <= (1 - self.eta) * before.lr
        entries = self._entries(critical(before.old, new, self.eta) | dropped, ctx) if ctx.world.rank == 0 else {}
        unseen = {spec.name: plan[spec.name] for (spec, _), norm in zip(self.choices, new, strict=True) if norm < 0}
        chosen = yield from agreed({**plan, **entries, **unseen}, self.choices)
        return chosen, Norms(lr or before.lr, torch.where(new < 0, before.old, new))

    def _entries(self, careful: Tensor, ctx: Context) -> Plan:
        ends = {spec.name: low_and_high(spec, menu, self.low, self.high, ctx) for spec, menu in self.choices}
        return {
            name: low if low_now else high
            for (name, (low, high)), low_now in zip(ends.items(), careful.tolist(), strict=True)
        }


def critical(old: Tensor, new: Tensor, eta: float) -> Tensor:
    """Where a norm has changed by the share eta or more, or is the first that was seen (old < 0)."""
    return (old < 0) | ((old - new).abs() >= eta * old) & (new != old)


def _norms(state: Gathered, ctx: Context) -> Program[Tensor]:
    """Of each layer's mean tensor, in the root mean square over the ranks that saw it; -1 where none did."""
    squares = torch.tensor([float(mean.double().square().sum()) for mean in state.means()], dtype=torch.float64)
    table = torch.stack((squares, (state.counts > 0).double()))
    if ctx.world.size > 1:
        table = yield AllReduce(table, labels=reduce_labels("", table, "plan"))
    squares, ranks = table
    return torch.where(ranks > 0, (squares / ranks.clamp(min=1)).sqrt(), -1.0)


def _known(lr: float | None) -> float:
    """A learning rate that can be compared, or 0."""
    return lr if lr is not None and 0 < lr < float("inf") else 0.0
