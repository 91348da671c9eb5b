"""The handler of a server and the loops of workers and clients over a transport."""

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
from ..sync.client_base import describe_reply
from ..sync.messages import JOIN_AGAIN, UNKNOWN
from ..sync.worker import GradientWorker

log = get_logger(__name__)
L = TypeVar("L")
C = TypeVar("C", bound=GradientWorker | FederatedClient)


class StateMachine(Protocol):
    """A `GradientServer`, a `FederatedServer`, or a `Supervisor` of one."""

    def handle(self, message: Message, now: float) -> Message:
        """The reply to a message."""
        ...

    def expire(self, now: float) -> list[str]:
        """Stop waiting for overdue workers and return their names."""
        ...


class Handler:
    """The handler of a `Listener` or an `InProcess`: passes messages, one at a time and with the time, to a server."""

    def __init__(self, machine: StateMachine, clock: Callable[[], float] = time.monotonic) -> None:
        self._machine, self._clock, self._lock = machine, clock, threading.Lock()

    def __call__(self, message: Message) -> Message:
        with self._lock:
            return self._machine.handle(message, self._clock())

    def inspect(self, read: Callable[[float], L]) -> L:
        """Return `read(now)`, called while no message is handled, after overdue workers were removed.

        The server has no clock: call this regularly, so that timeouts pass while no message arrives.
        """
        with self._lock:
            now = self._clock()
            self._machine.expire(now)
            return read(now)


def _sleep() -> None:
    time.sleep(0.01)


class _Loop(Generic[C]):
    """Common to both loops: join, rejoin after a restart of the server, leave."""

    unit: str  # of `max_bad`

    def __init__(
        self,
        transport: Transport,
        client: C,
        pause: Callable[[], None] = _sleep,
        *,
        max_bad: int = 10,
        follow_restarts: bool = False,
    ) -> None:
        if max_bad < 0:
            raise CompositionError(f"max_bad_{self.unit}s must not be negative, got {max_bad}; 0 means never")
        self.transport, self.client, self.pause = transport, client, pause
        self.max_bad, self.follow_restarts = max_bad, follow_restarts
        self.has_joined = False  # and not left

    def enter(self) -> bool:
        """Join; return whether an update that an earlier loop left unanswered was accepted."""
        is_accepted = False
        if (
            self.client.unanswered is not None
        ):  # an earlier loop was interrupted; the server knows this update if it came
            is_accepted = self.client.settle(self.transport.call(self.client.unanswered))
        self._join()
        return is_accepted

    def leave(self, step: int = 0) -> None:
        """Tell the server that this worker leaves."""
        self.has_joined = False
        self.transport.call(Message("leave", self.client.name, step))

    def _join(self) -> None:
        """Join, or join again. A restarted server may have lost its state: it is followed only with follow_restarts."""
        client = self.client
        epoch, run_id = client.server_epoch, client.run_id
        client.handle_welcome(self.transport.call(client.join()))
        self.has_joined = True
        if not epoch or client.server_epoch == epoch:
            return
        if self.follow_restarts and client.run_id == run_id:
            log.warning("%s: the server was restarted and resumed; continuing with it", client.name)
            return
        self.leave()  # so that the server does not wait for it
        if client.run_id == run_id:
            text = "was restarted from a saved state; pass follow_restarts (--follow-restarts) to continue with it"
        else:
            text = "was replaced by the server of another training; start this worker again to work for it"
        raise PeerLostError(f"{client.name}: the server {text}")

    def _push(self, message: Message) -> bool:
        reply = self.transport.call(message)
        is_accepted = self.client.settle(reply)
        if not is_accepted and reply.fields.get("reason") in JOIN_AGAIN:
            self._join()
        return is_accepted

    def _report_bad(self, step: int) -> None:
        client = self.client
        log.warning("%s: %s %d has no update: NaN or infinity in %s", client.name, self.unit, step, client.bad_layers)
        try:
            client.check_bad_updates(self.max_bad, self.unit)
        except NonFiniteError:
            self.leave()  # so that the server does not wait for it
            raise


class WorkerLoop(_Loop[GradientWorker]):
    """The loop of a `GradientServer`'s worker: `enter`, then `pull` and `push` in turn, then `leave`."""

    unit = "step"

    def pull(self) -> None:
        """Wait until the worker has the model of its next step."""
        worker = self.client
        while not worker.begin(reply := self.transport.call(worker.pull())):
            if reply.kind == "wait":
                self.pause()
            elif reply.fields.get("reason") in JOIN_AGAIN:
                self._join()
            else:
                raise ProtocolError(f"{worker.name} requested the model: {describe_reply(reply)}")

    def push(self, gradients: Mapping[str, Tensor]) -> bool:
        """Send gradients; return whether the server accepted them. Gradients that are not finite are not sent."""
        worker = self.client
        message = worker.push(gradients)
        if message is None:
            worker.step += 1
            self._report_bad(worker.step - 1)
            return False
        return self._push(message)


class ClientLoop(_Loop[FederatedClient]):
    """The loop of a `FederatedServer`'s client: `enter`, then `pull` and `push` in turn until `pull` returns False."""

    unit = "round"

    def pull(self) -> bool:
        """Wait until the client is sampled; False when there are no more rounds."""
        client = self.client
        while (reply := self.transport.call(client.pull())).kind != "done":
            if reply.fields.get("reason") == UNKNOWN:
                self._join()
            elif reply.kind == "rejected":
                raise ProtocolError(f"{client.name} requested work: {describe_reply(reply)}")
            elif client.begin(reply):
                return True
            else:
                self.pause()
        self.has_joined = False
        return False

    def push(self, trained: Mapping[str, Tensor], examples: int) -> bool:
        """Send the change of the weights; return whether the server accepted it.

        If it is not finite, the server is told that this client has no update.
        """
        message = self.client.push(trained, examples)
        if message is not None:
            return self._push(message)
        self.transport.call(self.client.skip())  # a restarted server rejects it as unknown, and the next pull as well
        self._report_bad(self.client.round)
        return False


def run_worker(
    transport: Transport,
    worker: GradientWorker,
    gradient: Callable[[Mapping[str, Tensor], int], Mapping[str, Tensor]],
    steps: int,
    pause: Callable[[], None] = _sleep,
    *,
    max_bad_steps: int = 10,
    follow_restarts: bool = False,
) -> int:
    """Run a worker: join, then `steps` times pull, compute, push. A worker that was removed joins again.

    Args:
        transport: to the server.
        worker: its state.
        gradient: `gradient(weights, step)`; it must not keep the weights. Gradients that are not finite are logged and
            not sent.
        steps: number of updates.
        pause: called while the server says that the worker has to wait.
        max_bad_steps: after this many bad steps in a row the worker leaves with a NonFiniteError; 0: never.
        follow_restarts: continue with a server that was resumed from its saved state. Otherwise a restart is a
            PeerLostError.

    Returns:
        The number of accepted updates.
    """
    loop = WorkerLoop(transport, worker, pause, max_bad=max_bad_steps, follow_restarts=follow_restarts)
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
    max_bad_rounds: int = 10,
    follow_restarts: bool = False,
) -> int:
    """Run a federated client until the server has no more rounds.

    Args:
        transport: to the server.
        client: its state.
        train: `train(weights, round)` returns the trained weights and the number of examples; it must not modify the
            given weights. If they are not finite, the server is told that this client has no update.
        pause: called while the client is not sampled.
        max_bad_rounds: after this many bad rounds in a row the client leaves with a NonFiniteError; 0: never.
        follow_restarts: see `run_worker`.

    Returns:
        The number of accepted updates.
    """
    loop = ClientLoop(transport, client, pause, max_bad=max_bad_rounds, follow_restarts=follow_restarts)
    accepted = int(loop.enter())
    while loop.pull():
        accepted += loop.push(*train(client.weights, client.round))
    return accepted
