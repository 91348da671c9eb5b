"""How a server trains: its pace or its rounds, and the optimizer that steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core import CompositionError, check_int
from ..sync.federated import Federation
from ..sync.members import Pace
from ..sync.optimizers import Outer
from ..sync.sampling import Rounds
from ..sync.server import Server
from ..sync.texts import outer_of
from .agreement import Agreement


@dataclass(frozen=True)
class Terms:
    """How a server trains. bound: steps that a worker may be ahead of the slowest; none: asynchronous."""

    workers: int = 2
    bound: float = math.inf
    deadline: float = 60.0
    max_client_weight: float = math.inf

    def __post_init__(self) -> None:
        check_int("serve", "workers", self.workers, 1, "so many begin, or make a federated round")
        for name, usual in (("bound", "0 is in step, inf asynchronous"), ("deadline", "60 s is usual")):
            _check_amount(name, getattr(self, name), usual)
        _check_amount("max_client_weight", self.max_client_weight, "inf: all examples of a client count")

    def make_machine(
        self, agreement: Agreement, optimizer: Outer, weights: Mapping[str, Tensor]
    ) -> Server | Federation:
        exchange, down, seed = agreement.exchange, agreement.down, agreement.seed
        if agreement.rounds:
            rounds = Rounds(
                self.workers, agreement.rounds, deadline=self.deadline, max_client_weight=self.max_client_weight
            )
            return Federation(weights, rounds, exchange, optimizer, down=down, seed=seed)
        return Server(
            weights, optimizer, exchange, Pace(self.bound), workers=self.workers, down=down, deadline=self.deadline,
            seed=seed,
        )  # fmt: skip


def _check_amount(name: str, value: Any, usual: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or value < 0:
        raise CompositionError(f"serve: {name} must be a number from 0, or inf, got {value!r}; {usual}")


def read_optimizer(optimizer: str | Outer) -> Outer:
    """The optimizer of a text; one that is given as an object is taken as it is."""
    if isinstance(optimizer, type) or not isinstance(optimizer, str | Outer):
        raise CompositionError(f'serve: optimizer must be a text such as "sgd(lr=0.05)", got {optimizer!r:.60}')
    return outer_of(optimizer)
