"""Federated averaging (McMahan et al., 2017) on a virtual clock: clients that drop out or send malformed updates."""

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

from .simulated_workers import draw_uniform

_OUTCOME_KEY = "luck"  # frozen: makes the random bits
_DAMAGE_KEY = "spoil"  # frozen: makes the random bits
_DATA_KEY = "federated"  # frozen: makes the random bits
_ROWS_KEY = "rows"  # frozen: makes the random bits
_POSITION_KEY = "where"  # frozen: makes the random bits

Corruption = Callable[[Message, Key], Message]


@dataclass(frozen=True)
class FederationOutcome:
    """Figures of a simulation. stepped: closed rounds that changed the model. Bytes are of payloads."""

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
) -> FederationOutcome:
    """Simulate logistic regression on clients with different examples.

    In each round a sampled client drops out or sends a malformed update with the given probability; a round with
    missing clients ends at its deadline.
    """
    task = LogisticClients(clients, seed)
    settings = FederatedConfig(
        sampled or clients, rounds, round_timeout_s=1.0, max_client_weight=100, aggregate=aggregate
    )
    federation = FederatedServer(
        task.start(), settings, exchange, optimizer, downlink_compression=down, expected=clients, seed=seed
    )
    participants = [FederatedClient(f"client-{i:03d}", federation.layers, exchange, down, seed) for i in range(clients)]
    for client in participants:
        client.handle_welcome(federation.handle(client.join(), 0.0))
    before, now = task.loss(federation.weights), 0.0
    counts = dict.fromkeys(("dropped", "malformed", "up", "down"), 0)
    while not federation.is_done:
        round = federation.round
        for place, client in enumerate(participants):
            if federation.round != round:
                break
            _run_client_round(federation, client, task, place, (dropout, malformed, local_steps, seed), now, counts)
        if federation.round == round:  # a client did not answer
            now += settings.round_timeout_s
            federation.expire(now)
    return FederationOutcome(
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


def _run_client_round(
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
    luck = draw_uniform(derive_key(seed, _OUTCOME_KEY, client.name, client.round))
    if luck < dropout:
        counts["dropped"] += 1
        return
    message = client.push(task.trained(client.weights, place, steps), task.examples(place))
    if message is None:
        federation.handle(client.skip(), now)
        return
    if luck < dropout + malformed:
        counts["malformed"] += 1
        message = corrupt(message, derive_key(seed, _DAMAGE_KEY, client.name, client.round))
    counts["up"] += message.payload.num_bytes
    client.settle(federation.handle(message, now), keep_rejected=True)


class LogisticClients:
    """Labels of a common linear rule, features around a center per client; 20 to 59 examples each."""

    def __init__(self, clients: int, seed: int, features: int = 30) -> None:
        generator = torch.Generator().manual_seed(derive_key(seed, _DATA_KEY) % 2**62)
        rule = torch.randn(features, generator=generator)
        self.data: list[tuple[Tensor, Tensor]] = []
        for place in range(clients):
            center = torch.randn(features, generator=generator)
            rows = 20 + derive_key(seed, _ROWS_KEY, place) % 40
            x = center + torch.randn(rows, features, generator=generator)
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


def corrupt(message: Message, key: Key) -> Message:
    """Return the message with one of CORRUPTIONS applied; which one, and where, follows from the key."""
    corruptions = list(CORRUPTIONS.values())
    return corruptions[key % len(corruptions)](message, derive_key(key, _POSITION_KEY))


def replace_unchecked(message: Message, **changes: Any) -> Message:
    """`replace` without Message's own checks: frames reject some of these, but the server must not rely on it."""
    made = copy(message)
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return made


def _with(message: Message, **fields: Any) -> Message:
    return replace_unchecked(message, fields={**message.fields, **fields})


def _change_part(message: Message, key: Key, change: Callable[[Tensor], Tensor], numbers: bool = False) -> Message:
    """Return the message with one non-empty part changed; with `numbers` a part of floating-point numbers."""
    parts = list(message.payload.parts)
    places = [i for i, p in enumerate(parts) if p.numel() and (p.is_floating_point() or not numbers)]
    if not places:
        return replace_unchecked(message, payload=Payload(()))
    place = places[key % len(places)]
    parts[place] = change(parts[place])
    return replace_unchecked(message, payload=Payload(tuple(parts)))


def _put_value(value: float) -> Corruption:
    def corrupt_value(message: Message, key: Key) -> Message:
        def put(part: Tensor) -> Tensor:
            part = part.clone()
            part.view(-1)[key % part.numel()] = value
            return part

        return _change_part(message, key, put, numbers=True)

    return corrupt_value


def _change_dtype(part: Tensor) -> Tensor:
    return part.to(torch.float64 if part.dtype != torch.float64 else torch.float32)


CORRUPTIONS: dict[str, Corruption] = {
    "nan": _put_value(math.nan),
    "infinity": _put_value(math.inf),
    "minus infinity": _put_value(-math.inf),
    "weight 0": lambda m, _: _with(m, examples=0),
    "weight -1": lambda m, _: _with(m, examples=-1),
    "weight 1e300": lambda m, _: _with(m, examples=1e300),
    "weight nan": lambda m, _: _with(m, examples=math.nan),
    "weight of words": lambda m, _: _with(m, examples="many"),
    "no weight": lambda m, _: replace_unchecked(m, fields={"config": m.fields["config"]}),
    "short": lambda m, key: _change_part(m, key, lambda part: part[:-1]),
    "long": lambda m, key: _change_part(m, key, lambda part: torch.cat([part, part[:1]])),
    "fold": lambda m, key: _change_part(m, key, lambda part: part.reshape(1, -1)),
    "other type": lambda m, key: _change_part(m, key, _change_dtype),
    "one part too many": lambda m, _: replace_unchecked(m, payload=Payload((*m.payload.parts, torch.zeros(1)))),
    "one part too few": lambda m, _: replace_unchecked(m, payload=Payload(m.payload.parts[:-1])),
    "other names": lambda m, _: _with(m, config="0123456789abcdef"),
    "next round": lambda m, _: replace_unchecked(m, round=m.round + 1),
    "round -1": lambda m, _: replace_unchecked(m, round=-1),
}
