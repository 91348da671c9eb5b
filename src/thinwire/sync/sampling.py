"""Client sampling of federated rounds (FedAvg, McMahan et al., 2017), the settings of rounds, records of clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..core import CompositionError, Message, derive_key
from ..kernels import distinct_positions
from .messages import MAX_INT, Rejected
from .robust import RobustMean

_SAMPLE_KEY = "sample"  # frozen: makes the random bits


@dataclass(frozen=True)
class FederatedConfig:
    """Settings of federated rounds.

    Args:
        clients: number of clients sampled in a round.
        rounds: number of rounds.
        round_timeout_s: seconds after which a round ends with the updates that have arrived.
        min_updates: with fewer accepted updates a round changes nothing.
        max_client_weight: a client is weighted by its number of examples, at most by this.
        max_strikes: a client with this many rejected updates is not sampled any more; None: no limit.
        aggregate: how the updates of a round are combined.
    """

    clients: int
    rounds: int
    round_timeout_s: float = math.inf
    min_updates: int = 1
    max_client_weight: float = math.inf
    max_strikes: int | None = None
    aggregate: RobustMean = field(default_factory=RobustMean)

    def __post_init__(self) -> None:
        if not 1 <= self.min_updates <= self.clients:
            raise CompositionError(
                f"FederatedConfig: min_updates must be from 1 to clients={self.clients}, got {self.min_updates}"
            )
        if self.rounds < 0 or not self.round_timeout_s > 0:
            got = f"rounds={self.rounds}, round_timeout_s={self.round_timeout_s}"
            raise CompositionError(
                f"FederatedConfig: rounds must be at least 0 and round_timeout_s positive, got {got}"
            )
        if not self.max_client_weight > 0:
            raise CompositionError(f"FederatedConfig: max_client_weight must be positive, got {self.max_client_weight}")
        if (needed := self.aggregate.min_updates) > self.clients:
            method, faulty = self.aggregate.method, self.aggregate.num_byzantine
            raise CompositionError(
                f"FederatedConfig: {method} with num_byzantine={faulty} needs clients={needed} or more, "
                f"got {self.clients}"
            )


@dataclass
class ClientRecord:
    """What the server knows about a client."""

    last_accepted: int = -1  # the last round in which its update was accepted
    strikes: int = 0  # rejected updates that count against it
    last_reason: str = ""  # why it was last rejected
    has_left: bool = False  # it is not sampled before it joins again


def read_num_examples(message: Message) -> int:
    """A client's number of examples, its weight; Rejected unless it is a positive integer (not 0, -1, 1e300, 7.5)."""
    examples = message.fields.get("examples")
    if type(examples) is not int or not 1 <= examples <= MAX_INT:
        raise Rejected("weight", f"examples must be an integer from 1 to {MAX_INT}, got {examples!r}")
    return examples


def sample_clients(names: Sequence[str], count: int, seed: int, round: int) -> list[str]:
    """`count` distinct names, or all if there are fewer; the same for the same seed and round."""
    key = derive_key(seed, _SAMPLE_KEY, round)
    places = distinct_positions(key, min(count, len(names)), len(names), torch.device("cpu"))
    return [names[place] for place in places.tolist()]
