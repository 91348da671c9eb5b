"""A federation on a virtual clock: clients that drop out, and clients that send what no honest client would."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thinwire.core import Key, Message, Payload, derive_key
from thinwire.sync.client import FederatedClient
from thinwire.sync.federated import FederatedServer
from thinwire.sync.optimizers import SGD, OuterOptimizer
from thinwire.sync.robust import RobustMean
from thinwire.sync.sampling import FederatedConfig

from .simulated_workers import uniform

_OUTCOME_KEY = "luck"  # frozen: makes the random bits
_DAMAGE_KEY = "spoil"  # frozen: makes the random bits
_DATA_KEY = "federated"  # frozen: makes the random bits
_ROWS_KEY = "rows"  # frozen: makes the random bits
_POSITION_KEY = "where"  # frozen: makes the random bits

Spoil = Callable[[Message, Key], Message]


@dataclass(frozen=True)
class Outcome:
    """rounds: closed; stepped: of these, the ones that changed the model. Bytes are of payloads."""

    rounds: int
    stepped: int
    loss_before: float
    loss_after: float
    accuracy: float
    dropped: int
    malformed: int
    refusals: dict[str, int]
    finite: bool
    bytes_up: int
    bytes_down: int


def simulate(
    clients: int = 64,
    dropout: float = 0.2,
    malformed: float = 0.05,
    rounds: int = 50,
    *,
    sampled: int | None = None,
    exchange: str = "ef(topk(density=0.1))",
    down: str | None = None,
    optimizer: OuterOptimizer = SGD(lr=1.0),  # noqa: B008  settings only
    aggregate: RobustMean = RobustMean(),  # noqa: B008
    local_steps: int = 5,
    seed: int = 0,
) -> Outcome:
    """Logistic regression whose clients see different examples. Each round a sampled client drops out, or spoils its
    update, with the given chance; a round whose clients dropped out ends at its deadline."""
    task = LogisticClients(clients, seed)
    settings = FederatedConfig(
        sampled or clients, rounds, round_timeout_s=1.0, max_client_weight=100, aggregate=aggregate
    )
    federation = FederatedServer(
        task.start(), settings, exchange, optimizer, downlink_compression=down, expected=clients, seed=seed
    )
    people = [FederatedClient(f"client-{i:03d}", federation.layers, exchange, down, seed) for i in range(clients)]
    for client in people:
        client.handle_welcome(federation.handle(client.join(), 0.0))
    before, now = task.loss(federation.weights), 0.0
    counts = dict.fromkeys(("dropped", "malformed", "up", "down"), 0)
    while not federation.is_done:
        round = federation.round
        for place, client in enumerate(people):
            if federation.round != round:
                break
            _take_part(federation, client, task, place, (dropout, malformed, local_steps, seed), now, counts)
        if federation.round == round:  # somebody did not answer
            now += settings.round_timeout_s
            federation.expire(now)
    return Outcome(
        rounds=len(federation.history),
        stepped=sum(counts["stepped"] for counts in federation.history),
        loss_before=before,
        loss_after=task.loss(federation.weights),
        accuracy=task.accuracy(federation.weights),
        dropped=counts["dropped"],
        malformed=counts["malformed"],
        refusals=dict(federation.rejections),
        finite=all(bool(weight.isfinite().all()) for weight in federation.weights.values()),
        bytes_up=counts["up"],
        bytes_down=counts["down"],
    )


def _take_part(
    federation: FederatedServer,
    client: FederatedClient,
    task: LogisticClients,
    place: int,
    chances: tuple[float, float, int, int],
    now: float,
    counts: dict[str, int],
) -> None:
    dropout, malformed, steps, seed = chances
    reply = federation.handle(client.pull(), now)
    counts["down"] += reply.payload.num_bytes
    if not client.begin(reply):
        return
    luck = uniform(derive_key(seed, _OUTCOME_KEY, client.name, client.round))
    if luck < dropout:
        counts["dropped"] += 1
        return
    message = client.push(task.trained(client.weights, place, steps), task.examples(place))
    if message is None:
        federation.handle(client.skip(), now)
        return
    if luck < dropout + malformed:
        counts["malformed"] += 1
        message = spoiled(message, derive_key(seed, _DAMAGE_KEY, client.name, client.round))
    counts["up"] += message.payload.num_bytes
    client.settle(federation.handle(message, now), keep_rejected=True)


class LogisticClients:
    """Labels of a common linear rule, features around a centre of each client's own; 20 to 59 examples each."""

    def __init__(self, clients: int, seed: int, features: int = 30) -> None:
        generator = torch.Generator().manual_seed(derive_key(seed, _DATA_KEY) % 2**62)
        rule = torch.randn(features, generator=generator)
        self.data: list[tuple[Tensor, Tensor]] = []
        for place in range(clients):
            centre = torch.randn(features, generator=generator)
            rows = 20 + derive_key(seed, _ROWS_KEY, place) % 40
            x = centre + torch.randn(rows, features, generator=generator)
            self.data.append((x, (x @ rule > 0).float()))

    def start(self) -> dict[str, Tensor]:
        return {"weight": torch.zeros(self.data[0][0].shape[1]), "bias": torch.zeros(1)}

    def examples(self, place: int) -> int:
        return len(self.data[place][1])

    def trained(self, weights: dict[str, Tensor], place: int, steps: int, lr: float = 0.1) -> dict[str, Tensor]:
        (x, y), w, b = self.data[place], weights["weight"], weights["bias"]
        for _ in range(steps):
            error = (torch.sigmoid(x @ w + b) - y) / len(y)
            w, b = w - lr * (x.T @ error), b - lr * error.sum()
        return {"weight": w, "bias": b}

    def loss(self, weights: dict[str, Tensor]) -> float:
        x, y = self._all()
        return float(torch.nn.functional.binary_cross_entropy_with_logits(x @ weights["weight"] + weights["bias"], y))

    def accuracy(self, weights: dict[str, Tensor]) -> float:
        x, y = self._all()
        return float(((x @ weights["weight"] + weights["bias"] > 0) == (y > 0.5)).float().mean())

    def _all(self) -> tuple[Tensor, Tensor]:
        return torch.cat([x for x, _ in self.data]), torch.cat([y for _, y in self.data])


def spoiled(message: Message, key: Key) -> Message:
    """One of the ways in which an update can be wrong; which one, and where, follows from the key."""
    ways = list(SPOILERS.values())
    return ways[key % len(ways)](message, derive_key(key, _POSITION_KEY))


def changed(message: Message, **changes: Any) -> Message:
    """`replace` without Message's own checks: frames refuse some of these already, the server must not rely on it."""
    made = copy(message)
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return made


def _with(message: Message, **fields: Any) -> Message:
    return changed(message, fields={**message.fields, **fields})


def _with_part(message: Message, key: Key, change: Callable[[Tensor], Tensor], numbers: bool = False) -> Message:
    """The message with one part changed: any part that is not empty, or any that holds numbers with a point."""
    parts = list(message.payload.parts)
    places = [i for i, p in enumerate(parts) if p.numel() and (p.is_floating_point() or not numbers)]
    if not places:
        return changed(message, payload=Payload(()))
    place = places[key % len(places)]
    parts[place] = change(parts[place])
    return changed(message, payload=Payload(tuple(parts)))


def _holding(value: float) -> Spoil:
    def spoil(message: Message, key: Key) -> Message:
        def put(part: Tensor) -> Tensor:
            part = part.clone()
            part.view(-1)[key % part.numel()] = value
            return part

        return _with_part(message, key, put, numbers=True)

    return spoil


def _other_type(part: Tensor) -> Tensor:
    return part.to(torch.float64 if part.dtype != torch.float64 else torch.float32)


SPOILERS: dict[str, Spoil] = {
    "nan": _holding(math.nan),
    "infinity": _holding(math.inf),
    "minus infinity": _holding(-math.inf),
    "weight 0": lambda m, _: _with(m, examples=0),
    "weight -1": lambda m, _: _with(m, examples=-1),
    "weight 1e300": lambda m, _: _with(m, examples=1e300),
    "weight nan": lambda m, _: _with(m, examples=math.nan),
    "weight of words": lambda m, _: _with(m, examples="many"),
    "no weight": lambda m, _: changed(m, fields={"config": m.fields["config"]}),
    "short": lambda m, key: _with_part(m, key, lambda part: part[:-1]),
    "long": lambda m, key: _with_part(m, key, lambda part: torch.cat([part, part[:1]])),
    "fold": lambda m, key: _with_part(m, key, lambda part: part.reshape(1, -1)),
    "other type": lambda m, key: _with_part(m, key, _other_type),
    "one part too many": lambda m, _: changed(m, payload=Payload((*m.payload.parts, torch.zeros(1)))),
    "one part too few": lambda m, _: changed(m, payload=Payload(m.payload.parts[:-1])),
    "other names": lambda m, _: _with(m, config="0123456789abcdef"),
    "next round": lambda m, _: changed(m, round=m.round + 1),
    "round -1": lambda m, _: changed(m, round=-1),
}
