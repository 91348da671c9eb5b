"""From state machines to processes: the handler of a server, and the loops of workers and clients over a transport."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from ..core import CompositionError, Message, NonFiniteError, PeerLostError, ProtocolError
from ..core.logs import get_logger
from ..drivers.driver import Transport
from ..sync.client import FederatedClient
from ..sync.messages import JOIN_AGAIN
from ..sync.party import said
from ..sync.worker import Worker

log = get_logger(__name__)
L = TypeVar("L")
P = TypeVar("P", bound=Worker | FederatedClient)


class Handles(Protocol):
    """A `Server`, a `Federation`, or a `Supervisor` of one."""

    def handle(self, message: Message, now: float) -> Message: ...

    def expire(self, now: float) -> list[str]: ...


class Handler:
    """What a listener or an `InProcess` calls: one message after another, from any thread, with the time it came."""

    def __init__(self, machine: Handles, clock: Callable[[], float] = time.monotonic) -> None:
        self._machine, self._clock, self._lock = machine, clock, threading.Lock()

    def __call__(self, message: Message) -> Message:
        with self._lock:
            return self._machine.handle(message, self._clock())

    def look(self, read: Callable[[float], L]) -> L:
        """`read(now)` while no message is handled, after overdue workers have been given up.

        A machine has no clock: without a look now and then, deadlines pass unseen while no message comes.
        """
        with self._lock:
            now = self._clock()
            self._machine.expire(now)
            return read(now)


def _sleep() -> None:
    time.sleep(0.01)


class _Loop(Generic[P]):
    """What both loops do alike: join, join again after a restart of the server, leave."""

    unit: str  # of `max_bad`

    def __init__(
        self,
        transport: Transport,
        party: P,
        pause: Callable[[], None] = _sleep,
        *,
        max_bad: int = 10,
        follow_restarts: bool = False,
    ) -> None:
        if max_bad < 0:
            raise CompositionError(f"most_bad_{self.unit}s must not be negative, got {max_bad}; 0 means never")
        self.transport, self.party, self.pause = transport, party, pause
        self.max_bad, self.follow_restarts = max_bad, follow_restarts
        self.is_inside = False  # the server counts on this party

    def enter(self) -> bool:
        """Join; whether an update that an earlier loop left unanswered was accepted."""
        accepted = False
        if self.party.unanswered is not None:  # an earlier loop was cut off: the server knows whether it has had this
            accepted = self.party.settle(self.transport.call(self.party.unanswered))
        self._join()
        return accepted

    def leave(self, step: int = 0) -> None:
        self.is_inside = False
        self.transport.call(Message("leave", self.party.name, step))

    def _join(self) -> None:
        """Join, or join again. A server of another life may have begun from zero: that is not followed unasked."""
        party = self.party
        life, run = party.life, party.run
        party.welcomed(self.transport.call(party.join()))
        self.is_inside = True
        if not life or party.life == life:
            return
        if self.follow_restarts and party.run == run:
            log.warning("%s: the server was restarted and resumed; going on with it", party.name)
            return
        self.leave()  # so that nothing waits for it
        if party.run == run:
            text = "was restarted and went on from a stored state; follow_restarts (--follow-restarts) goes on with it"
        else:
            text = "was replaced by one of another training, which began anew; start this worker again to work for it"
        raise PeerLostError(f"{party.name}: the server {text}")

    def _push(self, message: Message) -> bool:
        reply = self.transport.call(message)
        accepted = self.party.settle(reply)
        if not accepted and reply.fields.get("reason") in JOIN_AGAIN:
            self._join()
        return accepted

    def _report_bad(self, step: int) -> None:
        party = self.party
        log.warning("%s: %s %d has no update: NaN or infinity in %s", party.name, self.unit, step, party.bad_layers)
        try:
            party.check_bad(self.max_bad, self.unit)
        except NonFiniteError:
            self.leave()  # so that nothing waits for it
            raise


class WorkerLoop(_Loop[Worker]):
    """A worker of a `Server`: `enter`, then `pull` and `push` in turns, then `leave`."""

    unit = "step"

    def pull(self) -> None:
        """Wait until the worker has the model of its next step."""
        worker = self.party
        while not worker.begin(reply := self.transport.call(worker.pull())):
            if reply.kind == "wait":
                self.pause()
            elif reply.fields.get("reason") in JOIN_AGAIN:
                self._join()
            else:
                raise ProtocolError(f"{worker.name} asked for the model: {said(reply)}")

    def push(self, gradients: Mapping[str, Tensor]) -> bool:
        """Whether the server accepted them. With a NaN or an infinity they are not sent."""
        worker = self.party
        message = worker.push(gradients)
        if message is None:
            worker.step += 1
            self._report_bad(worker.step - 1)
            return False
        return self._push(message)


class ClientLoop(_Loop[FederatedClient]):
    """A client of a `Federation`: `enter`, then `pull` and `push` in turns until `pull` gives False."""

    unit = "round"

    def pull(self) -> bool:
        """Wait until the client is to train; False when there are no more rounds."""
        client = self.party
        while (reply := self.transport.call(client.pull())).kind != "done":
            if reply.fields.get("reason") == "unknown":
                self._join()
            elif reply.kind == "refused":
                raise ProtocolError(f"{client.name} asked for work: {said(reply)}")
            elif client.begin(reply):
                return True
            else:
                self.pause()
        self.is_inside = False
        return False

    def push(self, trained: Mapping[str, Tensor], examples: int) -> bool:
        """Whether the server accepted the update. If it holds a NaN or an infinity, the server is told so instead."""
        message = self.party.push(trained, examples)
        if message is not None:
            return self._push(message)
        self.transport.call(self.party.skip())  # a restarted server says `unknown`; so it does to the next pull
        self._report_bad(self.party.round)
        return False


def run_worker(
    transport: Transport,
    worker: Worker,
    gradient: Callable[[Mapping[str, Tensor], int], Mapping[str, Tensor]],
    steps: int,
    pause: Callable[[], None] = _sleep,
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
    loop = WorkerLoop(transport, worker, pause, max_bad=most_bad_steps, follow_restarts=follow_restarts)
    before = worker.accepted
    loop.enter()
    for _ in range(steps):
        loop.pull()
        loop.push(gradient(worker.weights, worker.step))
    loop.leave(worker.step)
    return worker.accepted - before


def run_client(
    transport: Transport,
    client: FederatedClient,
    train: Callable[[Mapping[str, Tensor], int], tuple[Mapping[str, Tensor], int]],
    pause: Callable[[], None] = _sleep,
    *,
    most_bad_rounds: int = 10,
    follow_restarts: bool = False,
) -> int:
    """The loop of a federated client until the server is done; in how many rounds its update was accepted.

    train(weights, round) gives the weights after local training and the number of examples; it must not change those
    it is given. If they hold a NaN or an infinity, the server is told that this round has no update of this client;
    after most_bad_rounds in a row (0: never) it leaves with a NonFiniteError. follow_restarts: see `run_worker`.
    """
    loop = ClientLoop(transport, client, pause, max_bad=most_bad_rounds, follow_restarts=follow_restarts)
    accepted = int(loop.enter())
    while loop.pull():
        accepted += loop.push(*train(client.weights, client.round))
    return accepted
