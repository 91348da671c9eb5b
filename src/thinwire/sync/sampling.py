"""Settings of federated rounds, what the server knows of each client, and which clients a round samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..core import CompositionError, Message, derive_key
from ..kernels import distinct_positions
from .messages import MOST, Refused
from .robust import Rule

_SAMPLE_KEY = "sample"  # frozen: makes the random bits


@dataclass(frozen=True)
class Rounds:
    """clients: how many a round samples. least: fewer accepted updates change nothing. deadline: seconds a round lasts.

    max_client_weight: a client counts for its number of examples, at most for this. max_strikes: who was refused so
    often is sampled no more; none samples on.
    """

    clients: int
    rounds: int
    deadline: float = math.inf
    least: int = 1
    max_client_weight: float = math.inf
    max_strikes: int | None = None
    aggregate: Rule = field(default_factory=Rule)

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.clients or self.rounds < 0 or not self.deadline > 0:
            got = f"clients={self.clients}, least={self.least}, rounds={self.rounds}, deadline={self.deadline}"
            raise CompositionError(f"Rounds: 1 <= least <= clients, rounds >= 0 and deadline > 0 wanted, got {got}")
        if not self.max_client_weight > 0:
            raise CompositionError(f"Rounds: max_client_weight must be positive, got {self.max_client_weight}")
        if self.aggregate.least > self.clients:
            rule, need = self.aggregate, self.aggregate.least
            raise CompositionError(
                f"Rounds: {rule.name} with faulty={rule.faulty} needs {need} clients a round, got {self.clients}"
            )


@dataclass
class Client:
    settled: int = -1  # the last round in which it was accepted
    strikes: int = 0
    last: str = ""  # why it was last refused
    has_left: bool = False  # it said so; it is not sampled before it joins again


def examples_of(message: Message) -> int:
    """A client's number of examples, which is its weight: whole and positive; 0, -1, 1e300, NaN and 7.5 are refused."""
    examples = message.fields.get("examples")
    if type(examples) is not int or not 1 <= examples <= MOST:
        raise Refused("weight", f"examples must be a whole number from 1 to {MOST}, got {examples!r}")
    return examples


def sample(names: Sequence[str], count: int, seed: int, round: int) -> list[str]:
    """So many different names, the same for the same seed and round; all if there are no more."""
    places = distinct_positions(
        derive_key(seed, _SAMPLE_KEY, round), min(count, len(names)), len(names), torch.device("cpu")
    )
    return [names[place] for place in places.tolist()]
