"""How a server trains: its workers, their staleness or rounds, and its optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core import CompositionError, check_int
from ..sync.federated import FederatedServer
from ..sync.members import Staleness
from ..sync.optimizers import OuterOptimizer
from ..sync.sampling import FederatedConfig
from ..sync.server import GradientServer
from ..sync.texts import resolve_outer_optimizer
from .shared_settings import SharedSettings


@dataclass(frozen=True)
class ServerConfig:
    """How a server trains.

    Args:
        workers: training starts with this many; in federated rounds, clients per round.
        max_lead: steps that a worker may be ahead of the slowest; inf: asynchronous.
        round_timeout_s: seconds to wait for a worker's update, or for the updates of a federated round.
        max_client_weight: largest weight of a federated client.
    """

    workers: int = 2
    max_lead: float = math.inf
    round_timeout_s: float = 60.0
    max_client_weight: float = math.inf

    def __post_init__(self) -> None:
        check_int("serve", "workers", self.workers, 1, "training starts with this many, or a round has this many")
        _check_amount("max_lead", self.max_lead, "0 is synchronous, inf asynchronous")
        _check_amount("round_timeout_s", self.round_timeout_s, "60 is usual")
        _check_amount("max_client_weight", self.max_client_weight, "inf: all examples of a client count")

    def make_server(
        self, shared: SharedSettings, optimizer: OuterOptimizer, weights: Mapping[str, Tensor]
    ) -> GradientServer | FederatedServer:
        """The state machine of the server."""
        common: dict[str, Any] = {"downlink_compression": shared.downlink_compression, "seed": shared.seed}
        if shared.rounds:
            settings = FederatedConfig(
                self.workers,
                shared.rounds,
                round_timeout_s=self.round_timeout_s,
                max_client_weight=self.max_client_weight,
            )
            return FederatedServer(weights, settings, shared.composition, optimizer, **common)
        return GradientServer(
            weights,
            optimizer,
            shared.composition,
            Staleness(self.max_lead),
            workers=self.workers,
            worker_timeout_s=self.round_timeout_s,
            **common,
        )


def _check_amount(name: str, value: Any, usual: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or value < 0:
        raise CompositionError(f"serve: {name} must be a number from 0, or inf, got {value!r}; {usual}")


def read_optimizer(optimizer: str | OuterOptimizer) -> OuterOptimizer:
    """The optimizer that a text describes; an object is returned as it is."""
    if isinstance(optimizer, type) or not isinstance(optimizer, str | OuterOptimizer):
        raise CompositionError(f'serve: optimizer must be a text such as "sgd(lr=0.05)", got {optimizer!r:.60}')
    return resolve_outer_optimizer(optimizer)
