"""Accordion (Agarwal et al., 2021): compress a layer little while its gradient norm changes fast, much otherwise.

Ranks all-reduce one squared norm a layer; rank 0 decides and broadcasts the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import AllReduce, CompositionError, Context, LayerMenus, Plan, Program, reduce_labels
from .base import broadcast_plan
from .cost_search import low_and_high_compression, same_method_options
from .windowed import WindowedController, WindowState, check_settings


class AccordionState(NamedTuple):
    """What the last decision was based on."""

    lr: float  # 0: unknown
    norms: Tensor  # float64, one a layer; below 0: no norm yet


@dataclass(frozen=True)
class Accordion(WindowedController):
    """Compress a layer little while the norm of its gradients changes by `eta` or more from period to period.

    A period is `every` exchanges; a norm is that of the layer's mean gradient over it, in the root mean square over
    ranks. All layers are compressed little in the first two periods, and in the period after the learning rate fell by
    the share `eta` or more. Little compression is the option that sends about `low` times the default's bytes, much is
    `high` times; of two options, the larger and the smaller. Agarwal et al., 2021.
    """

    eta: float = 0.5
    every: int = 500
    low: float = 2.0
    high: float = 0.5
    menus: LayerMenus = field(default=(), repr=False)

    observed = "gradient"

    def __post_init__(self) -> None:
        check_settings(self, ("every",), {})
        if not 0 < self.eta < float("inf"):
            raise CompositionError(f"Accordion: eta, a relative change, must be above 0, got {self.eta}; 0.5 is usual")
        if not 0 < self.high <= self.low < float("inf"):
            raise CompositionError(
                "Accordion: high and low are multiples of the default's bytes, and high compression sends no more than "
                f"low, got high={self.high} and low={self.low}; high=0.5, low=2.0 are usual"
            )

    @property
    def start(self) -> int:  # type: ignore[override]
        return self.every

    @property
    def window(self) -> int:  # type: ignore[override]
        return self.every

    def _init_extra(self) -> AccordionState:
        return AccordionState(0.0, torch.full((len(self.menus),), -1.0, dtype=torch.float64))

    def replan(self, plan: Plan, state: WindowState, ctx: Context) -> Program[tuple[Plan, WindowState]]:
        if self.menus and state.num_exchanges == 0:
            state = state._replace(extra=state.extra._replace(lr=_lr_or_zero(ctx.lr)))
            all_critical = torch.ones(len(self.menus), dtype=torch.bool)
            plan = {**plan, **(yield from broadcast_plan(self._choose(all_critical, ctx), self.menus))}
        return (yield from super().replan(plan, state, ctx))

    def _decide(self, plan: Plan, state: WindowState, ctx: Context) -> Program[tuple[Plan, AccordionState]]:
        last: AccordionState = state.extra
        norms = yield from _reduce_norms(state, ctx)
        lr = _lr_or_zero(ctx.lr)
        lr_dropped = 0 < lr <= (1 - self.eta) * last.lr
        chosen = self._choose(is_critical(last.norms, norms, self.eta) | lr_dropped, ctx) if ctx.world.rank == 0 else {}
        unknown = {spec.name: plan[spec.name] for (spec, _), norm in zip(self.menus, norms, strict=True) if norm < 0}
        new_plan = yield from broadcast_plan({**plan, **chosen, **unknown}, self.menus)
        return new_plan, AccordionState(lr or last.lr, torch.where(norms < 0, last.norms, norms))

    def _choose(self, critical: Tensor, ctx: Context) -> Plan:
        """Little compression for critical layers, much for the others."""
        costs = self._costs.compute(self._zeros, ctx)
        return {
            spec.name: low_and_high_compression(row.tolist(), menu.default, among, self.low, self.high)[not is_low]
            for (spec, menu), row, among, is_low in zip(
                self.menus, costs, self._same_method, critical.tolist(), strict=True
            )
        }

    def _zeros(self, index: int) -> Tensor:
        spec, _ = self.menus[index]
        return torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)

    @cached_property
    def _same_method(self) -> list[list[int]]:
        return [same_method_options(menu) for _, menu in self.menus]


def is_critical(old: Tensor, new: Tensor, eta: float) -> Tensor:
    """Where a norm has changed by the share eta or more, or is the first one (old < 0)."""
    return (old < 0) | ((old - new).abs() >= eta * old) & (new != old)


def _reduce_norms(state: WindowState, ctx: Context) -> Program[Tensor]:
    """Norm of each layer's mean tensor, in the root mean square over the ranks that have one; -1 where none has."""
    squares = torch.tensor([float(mean.double().square().sum()) for mean in state.means()], dtype=torch.float64)
    table = torch.stack((squares, (state.counts > 0).double()))
    if ctx.world.size > 1:
        table = yield AllReduce(table, labels=reduce_labels("", table, "plan"))
    squares, ranks = table
    return torch.where(ranks > 0, (squares / ranks.clamp(min=1)).sqrt(), -1.0)


def _lr_or_zero(lr: float | None) -> float:
    """The learning rate if it is positive and finite, else 0."""
    return lr if lr is not None and 0 < lr < float("inf") else 0.0
