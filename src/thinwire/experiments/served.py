"""A task trained over sockets: one process holds the model, others come with their share of the data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core import CompositionError, PeerLostError, TensorSpec, shard_sizes
from ..drivers.sockets import Connection, Listener, Secret, Tls, read_secret
from ..sync.client import FederatedClient
from ..sync.federated import Federation
from ..sync.members import Pace
from ..sync.optimizers import SGD
from ..sync.sampling import Rounds
from ..sync.server import Server
from ..sync.serving import handler, join, take_part
from ..sync.uplink import digest_of, form_of, specs_of
from ..sync.worker import Worker
from ..wire import MAX_FRAME, fingerprint_of, frame_limit
from .company import Company
from .stored import Storage, Store, StoredCompany, done_by
from .tasks import make_task
from .tasks.base import Learner
from .tasks.splits import Split

SECRET = "THINWIRE_SECRET"  # the environment variable
_MOST_FRAME = 1 << 30  # unless more is given: so much memory one peer may ask for
_LOOK_S = 0.2  # between two looks at deadlines and news
_LINGER_S = 10.0  # at most, until all who are connected have heard the end and taken their leave


@dataclass(frozen=True)
class Service:
    """What a server and its workers must have alike: both get it from their own command lines."""

    task: str
    exchange: str = "dense()"
    down: str | None = None
    rounds: int = 0  # federated; 0: workers push gradients
    seed: int = 1
    max_frame: int | None = None  # bytes; each side may have its own

    def learner(self, rank: int, size: int, data: str | None) -> Learner:
        task = make_task(self.task, {}, data)
        split = Split.parse("iid")
        task.prepare(size, split)
        return task.learner(rank, size, split, self.seed)

    def settings(self, layers: list[TensorSpec]) -> dict[str, Any]:
        """All that both sides must have alike, so that a difference can be named."""
        numbers, digest = sum(spec.numel for spec in layers), digest_of(form_of(layers))
        about = f"{len(layers)} with {numbers} numbers ({digest})"
        down = self.down or "dense"
        fields = {"task": self.task, "exchange": self.exchange, "down": down, "rounds": self.rounds, "seed": self.seed}
        return {**fields, "layers": about}

    def line(self, layers: list[TensorSpec]) -> dict[str, Any]:
        texts = (self.task, self.exchange, self.down or "dense", self.rounds, self.seed)
        limit = longest_frame(layers, self.max_frame)
        return {"fingerprint": fingerprint_of(layers, *texts), "settings": self.settings(layers), "max_frame": limit}


def longest_frame(layers: list[TensorSpec], given: int | None = None) -> int:
    """Bytes that one frame may have: those given, or else 64 MiB, or what a model needs that has more, up to 1 GiB.

    A worker gets the whole model when it joins, whatever is sent later; so a limit below that is refused here.
    """
    model = frame_limit([]) + sum(spec.numel * spec.dtype.itemsize for spec in layers)
    limit = given or (frame_limit(layers) if model <= MAX_FRAME else frame_limit(layers, cap=_MOST_FRAME))
    if model > limit:
        need, got = -(-model // (1 << 20)), limit >> 20
        raise CompositionError(f"--max-frame: this model needs {need} MiB, the limit is {got}; give --max-frame {need}")
    return limit


@dataclass(frozen=True)
class Terms:
    """How a server trains. bound: steps that a worker may be ahead of the slowest; none: asynchronous."""

    workers: int = 2
    lr: float = 0.05
    momentum: float = 0.0
    bound: float = math.inf
    deadline: float = 60.0
    max_client_weight: float = math.inf


def secret_of(file: str | None, environment: Mapping[str, str]) -> Secret | None:
    if file is not None:
        return read_secret(file=file)
    return read_secret(environment=SECRET) if SECRET in environment else None


def serve(
    service: Service,
    terms: Terms,
    address: str,
    data: str | None = None,
    secret: Secret | None = None,
    tls: Tls | None = None,
    tell: Callable[[str], None] = lambda _: None,
    storage: Storage | None = None,
) -> dict[str, Any]:
    """Serve until all have left, or until the last round; what came of it.

    A lost worker may come back within `terms.deadline` seconds. `lost` names those that did not. `unfinished`
    is there if all clients left before the last round.
    """
    learner = service.learner(0, 1, data)
    machine = _machine(service, terms, {name: p.detach() for name, p in learner.parameters.items()})
    stored_settings = {**service.settings(machine.layers), "rounds": bool(service.rounds)}  # there may be more rounds
    store = None if storage is None else Store(storage, machine, stored_settings)
    company = Company(machine, terms.deadline)
    handle = handler(StoredCompany(company, store))

    def lose(error: PeerLostError) -> None:
        handle.look(lambda now: company.lose(error.peer, now))

    lines = service.line(machine.layers)
    with Listener(address, handle, secret=secret, tls=tls, lost=lose, **lines) as listener:
        tell(f"listening on {listener.address}{_resumed(storage, machine, learner)}")
        try:
            while not handle.look(company.is_over):
                time.sleep(_LOOK_S)
                tell(handle.look(lambda now: company.news()))
        finally:
            if store is not None:  # also when it is interrupted
                handle.look(lambda now: store.save())
        until = time.monotonic() + _LINGER_S
        while listener.peers() and time.monotonic() < until:
            time.sleep(0.02)
        traffic = listener.traffic
    facts = {"received_bytes": traffic.received, "sent_bytes": traffic.sent, "lost": sorted(company.away)}
    if desertion := company.desertion():
        facts["unfinished"] = desertion
    refused = dict(listener.refused + machine.refusals)
    return {
        **_measured(learner, machine),
        "updates": done_by(machine),
        "refused": refused,
        **facts,
        **_staleness(machine),
    }


def _measured(learner: Learner, machine: Server | Federation) -> dict[str, Any]:
    with torch.no_grad():
        for name, parameter in learner.parameters.items():
            parameter.copy_(machine.weights[name])
    return dict(learner.measure())


def _resumed(storage: Storage | None, machine: Server | Federation, learner: Learner) -> str:
    if storage is None or not storage.resume:
        return ""
    found = ", ".join(f"{name} {value:.3f}" for name, value in _measured(learner, machine).items())
    unit = "rounds" if isinstance(machine, Federation) else "updates"
    return f" (resumed from {storage.folder} after {done_by(machine)} {unit}: {found})"


def _machine(service: Service, terms: Terms, weights: Mapping[str, Tensor]) -> Server | Federation:
    if not service.rounds:
        return Server(
            weights, SGD(terms.lr, terms.momentum), service.exchange, Pace(terms.bound), workers=terms.workers,
            down=service.down, deadline=terms.deadline, seed=service.seed,
        )  # fmt: skip
    rounds = Rounds(terms.workers, service.rounds, deadline=terms.deadline, max_client_weight=terms.max_client_weight)
    return Federation(weights, rounds, service.exchange, SGD(1.0), down=service.down, seed=service.seed)


def _staleness(machine: Server | Federation) -> dict[str, Any]:
    if isinstance(machine, Federation):
        return {}
    return {"staleness": {str(behind): count for behind, count in sorted(machine.staleness.items())}}


def work(
    service: Service,
    address: str,
    name: str,
    share: tuple[int, int],
    steps: int,
    lr: float = 0.05,
    data: str | None = None,
    secret: Secret | None = None,
    tls: Tls | None = None,
    tell: Callable[[str], None] = lambda _: None,
    most_bad: int = 10,
    follow_restarts: bool = False,
    retry_s: float = 30.0,
) -> dict[str, Any]:
    """One worker's life: `steps` updates, or in each federated round `steps` local ones. How many were accepted.

    most_bad, follow_restarts: see `sync.serving.join`. retry_s: see `Connection`.
    """
    rank, size = share
    if not 0 <= rank < size:
        raise CompositionError(f"join: --share must be RANK/SIZE with RANK from 0 to SIZE - 1, got {rank}/{size}")
    learner = service.learner(rank, size, data)
    examples = shard_sizes(int(make_task(service.task, {}, data).about().get("examples", size)), size)[rank]
    layers = specs_of({n: p.detach() for n, p in learner.parameters.items()})

    def gradient(weights: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        with torch.no_grad():
            for layer, parameter in learner.parameters.items():
                parameter.copy_(weights[layer])
        loss, gradients = learner.gradients(step)
        tell(f"step {step + 1}, loss {loss:.3f}")
        return gradients

    def trained(weights: Mapping[str, Tensor], round: int) -> tuple[dict[str, Tensor], int]:
        own = {layer: weight.clone() for layer, weight in weights.items()}
        for step in range(round * steps, (round + 1) * steps):
            for layer, found in gradient(own, step).items():
                own[layer] -= lr * found
        return own, examples

    with Connection(address, name, secret=secret, tls=tls, retry_s=retry_s, **service.line(layers)) as connection:
        if service.rounds:
            client = FederatedClient(name, layers, service.exchange, service.down, service.seed)
            accepted = take_part(
                connection.call, client, trained, most_bad_rounds=most_bad, follow_restarts=follow_restarts
            )
        else:
            worker = Worker(name, layers, service.exchange, service.down, service.seed)
            accepted = join(
                connection.call, worker, gradient, steps, most_bad_steps=most_bad, follow_restarts=follow_restarts
            )
        traffic = connection.traffic
        return {"accepted": accepted, "sent_bytes": traffic.sent, "received_bytes": traffic.received}
