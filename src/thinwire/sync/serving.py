"""From state machines to processes: a handler for a listener, and loops of workers and clients around `ask`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from torch import Tensor

from ..core import CompositionError, Message, NonFiniteError, PeerLostError, ProtocolError
from .client import FederatedClient
from .messages import JOIN_AGAIN, Ask
from .party import Party, said
from .worker import Worker

log = logging.getLogger("thinwire")
L = TypeVar("L")


class Handles(Protocol):
    """A `Server` or a `Federation`."""

    def handle(self, message: Message, now: float) -> Message: ...

    def expire(self, now: float) -> list[str]: ...


class Handler:
    """One message after another, whatever thread it comes from, with the time it came; and looks in between."""

    def __init__(self, machine: Handles, clock: Callable[[], float] = time.monotonic) -> None:
        self._machine, self._clock, self._lock = machine, clock, threading.Lock()

    def __call__(self, message: Message) -> Message:
        with self._lock:
            return self._machine.handle(message, self._clock())

    def look(self, read: Callable[[float], L]) -> L:
        """`read(now)` while no message is handled, after whoever is overdue has been given up.

        A machine has no clock: without a look now and then, deadlines pass unseen while no message comes.
        """
        with self._lock:
            now = self._clock()
            self._machine.expire(now)
            return read(now)


def handler(machine: Handles, clock: Callable[[], float] = time.monotonic) -> Handler:
    """What a listener calls for `machine`; whoever listens also takes a `look` now and then."""
    return Handler(machine, clock)


def serve(listen: Callable[[Handler], L], machine: Handles, clock: Callable[[], float] = time.monotonic) -> L:
    """What `listen` makes of the handler: `serve(lambda handle: Listener(address, handle), server)`."""
    return listen(handler(machine, clock))


def join(
    ask: Ask,
    worker: Worker,
    gradient: Callable[[Mapping[str, Tensor], int], Mapping[str, Tensor]],
    steps: int,
    pause: Callable[[], None] = lambda: time.sleep(0.01),
    *,
    most_bad_steps: int = 10,
    follow_restarts: bool = False,
) -> int:
    """The loop of a worker: join, then `steps` times pull, compute, push; how many updates were accepted.

    gradient(weights, step) must not keep the weights. A worker that was taken for dead joins again. A gradient
    with a NaN or an infinity is not sent and logged; after most_bad_steps in a row it leaves with a NonFiniteError.

    A server that was restarted meanwhile is a PeerLostError; with follow_restarts the worker goes on with one that was
    resumed from its stored state.
    """
    _check_most(most_bad_steps, "join: most_bad_steps")
    before = worker.accepted
    if worker.unanswered is not None:  # an earlier loop was cut off: the server knows whether it has had this
        worker.settle(ask(worker.unanswered))
    _enter(ask, worker, follow_restarts)
    for _ in range(steps):
        _pull(ask, worker, pause, follow_restarts)
        message = worker.push(gradient(worker.weights, worker.step))
        if message is None:
            worker.step += 1
            _report_bad(ask, worker, worker.step - 1, most_bad_steps, "step")
            continue
        reply = ask(message)
        if not worker.settle(reply) and reply.fields.get("reason") in JOIN_AGAIN:
            _enter(ask, worker, follow_restarts)
    ask(Message("leave", worker.name, worker.step))
    return worker.accepted - before


def _enter(ask: Ask, party: Worker | FederatedClient, follow_restarts: bool) -> None:
    """Join, or join again. A server of another life may have begun from zero: that is not gone along with unasked."""
    life, run = party.life, party.run
    party.welcomed(ask(party.join()))
    if not life or party.life == life:
        return
    if follow_restarts and party.run == run:
        log.warning("%s: the server was restarted and resumed; going on with it", party.name)
        return
    ask(Message("leave", party.name))  # so that nothing waits for it
    if party.run == run:
        text = "was restarted and went on from a stored state; follow_restarts (--follow-restarts) goes on with it"
    else:
        text = "was replaced by one of another training, which began anew; start this worker again to work for that one"
    raise PeerLostError(f"{party.name}: the server {text}")


def _pull(ask: Ask, worker: Worker, pause: Callable[[], None], follow_restarts: bool) -> None:
    while not worker.begin(reply := ask(worker.pull())):
        if reply.kind == "wait":
            pause()
        elif reply.fields.get("reason") in JOIN_AGAIN:
            _enter(ask, worker, follow_restarts)
        else:
            raise ProtocolError(f"{worker.name} asked for the model: {said(reply)}")


def take_part(
    ask: Ask,
    client: FederatedClient,
    train: Callable[[Mapping[str, Tensor], int], tuple[Mapping[str, Tensor], int]],
    pause: Callable[[], None] = lambda: time.sleep(0.01),
    *,
    most_bad_rounds: int = 10,
    follow_restarts: bool = False,
) -> int:
    """The loop of a federated client until the server is done; in how many rounds its update was accepted.

    train(weights, round) gives the weights after local training and the number of examples; it must not change those
    it is given. If they hold a NaN or an infinity, the server is told that this round has no update of this client;
    after most_bad_rounds in a row (0: never) it leaves with a NonFiniteError. follow_restarts: see `join`.
    """
    _check_most(most_bad_rounds, "take_part: most_bad_rounds")
    accepted = 0
    if client.unanswered is not None:  # an earlier loop was cut off: the server knows whether it has had this
        accepted += client.settle(ask(client.unanswered))
    _enter(ask, client, follow_restarts)
    while (reply := ask(client.pull())).kind != "done":
        if reply.fields.get("reason") == "unknown":
            _enter(ask, client, follow_restarts)
        elif reply.kind == "refused":
            raise ProtocolError(f"{client.name} asked for work: {said(reply)}")
        elif not client.begin(reply):
            pause()
        elif (message := client.push(*train(client.weights, client.round))) is not None:
            reply = ask(message)
            accepted += client.settle(reply)
            if reply.fields.get("reason") in JOIN_AGAIN:
                _enter(ask, client, follow_restarts)
        else:
            ask(client.skip())  # a server that was restarted says `unknown`; so it does to the next pull
            _report_bad(ask, client, client.round, most_bad_rounds, "round")
    return accepted


def _check_most(most: int, name: str) -> None:
    if most < 0:
        raise CompositionError(f"{name} must not be negative, got {most}; 0 means never")


def _report_bad(ask: Ask, party: Party, step: int, most: int, unit: str) -> None:
    log.warning("%s: %s %d has no update: NaN or infinity in %s", party.name, unit, step, party.bad_layers)
    try:
        party.check_bad(most, unit)
    except NonFiniteError:
        ask(Message("leave", party.name))  # so that nothing waits for it
        raise
