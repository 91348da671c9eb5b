"""Workers of a parameter server on a virtual clock: a seeded schedule in one thread, the same every time.

Asynchronous and stale-synchronous training (Ho et al., 2013).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.core import Key, Message, ProtocolError, derive_key
from thinwire.kernels import noise32
from thinwire.sync.messages import JOIN_AGAIN
from thinwire.sync.server import GradientServer
from thinwire.sync.worker import GradientWorker

_SECONDS_KEY = "seconds"  # frozen: makes the random bits
_REPEAT_KEY = "repeat"  # frozen: makes the random bits

Gradient = Callable[[str, int, Mapping[str, Tensor]], Mapping[str, Tensor]]  # (worker, its step, weights)


@dataclass(frozen=True)
class Schedule:
    """Seconds of a worker's step: its pace times 1 ± jitter, drawn from the seed; `dies` is when a worker fails."""

    paces: Mapping[str, float]
    jitter: float = 0.2
    seed: int = 0
    dies: Mapping[str, float] | None = None
    repeats: float = 0.0  # share of updates that arrive twice

    def seconds(self, worker: str, step: int) -> float:
        spread = 2 * draw_uniform(derive_key(self.seed, _SECONDS_KEY, worker, step)) - 1
        return self.paces[worker] * (1 + self.jitter * spread)

    def repeated(self, worker: str, step: int) -> bool:
        return draw_uniform(derive_key(self.seed, _REPEAT_KEY, worker, step)) < self.repeats

    def alive(self, worker: str, now: float) -> bool:
        return now < (self.dies or {}).get(worker, float("inf"))


def draw_uniform(key: Key) -> float:
    """Return one draw from [0, 1)."""
    return float(noise32(key, 1, torch.device("cpu"))) / 2**32


def run_simulation(
    server: GradientServer,
    workers: Sequence[GradientWorker],
    gradient: Gradient,
    schedule: Schedule,
    updates: int,
    begin: float = 0.0,
) -> float:
    """Run the workers until the server has applied `updates` updates; return the virtual time.

    A worker that must wait pulls again after every push, and when a deadline has passed.
    """
    ties = itertools.count()  # equal times: in the order of scheduling
    pending: list[tuple[float, int, GradientWorker, Message]] = []
    idle, now = list(workers), begin
    for worker in workers:
        worker.handle_welcome(server.handle(worker.join(), now))
    while server.applied < updates:
        idle = [worker for worker in idle if not _start_step(server, worker, gradient, schedule, now, pending, ties)]
        while not pending:
            idle = [worker for worker in idle if schedule.alive(worker.name, now)]
            if not idle or server.worker_timeout_s == float("inf"):
                raise ProtocolError(f"{server.applied} of {updates} updates were applied, and no worker can continue")
            now += server.worker_timeout_s
            idle = [
                worker for worker in idle if not _start_step(server, worker, gradient, schedule, now, pending, ties)
            ]
        now, _, worker, message = heapq.heappop(pending)
        if not schedule.alive(worker.name, now):
            continue
        reply = server.handle(message, now)
        if schedule.repeated(worker.name, message.round):
            reply = server.handle(message, now)
        worker.settle(reply)
        if reply.fields.get("reason") in JOIN_AGAIN:
            worker.handle_welcome(server.handle(worker.join(), now))
        idle.append(worker)
    for worker in workers:
        worker.give_up()  # updates in flight do not arrive
    return now


def _start_step(
    server: GradientServer,
    worker: GradientWorker,
    gradient: Gradient,
    schedule: Schedule,
    now: float,
    pending: list[tuple[float, int, GradientWorker, Message]],
    ties: itertools.count[int],
) -> bool:
    """Start the worker's next step; return False if it must wait."""
    if not schedule.alive(worker.name, now):
        return True  # a failed worker is dropped
    reply = server.handle(worker.pull(), now)
    if reply.fields.get("reason") == "unknown":
        worker.handle_welcome(server.handle(worker.join(), now))
        reply = server.handle(worker.pull(), now)
    if not worker.begin(reply):
        return False
    message = worker.push(gradient(worker.name, worker.step, worker.weights))
    if message is None:
        raise ProtocolError(f"{worker.name}: the gradient of step {worker.step} is not finite")
    heapq.heappush(pending, (now + schedule.seconds(worker.name, worker.step), next(ties), worker, message))
    return True
