"""A worker of a server for one's own model: `join` gives the loop, `ModelWorker` is the handle of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..core import ClosedError, ClosedOnExit, CompositionError, ThinwireError, check_flag, check_int, check_timeout
from ..drivers.sockets import Connection
from ..sync.client import FederatedClient
from ..sync.uplink import specs_of
from ..sync.worker import Worker
from .agreement import Agreement, Credentials, File, trained_tensors
from .loops import ClientLoop, WorkerLoop


class ModelWorker(ClosedOnExit):
    """The loop of one worker: before each pass the model gets the server's weights, after it the server gets an update.

    Without rounds the body of the loop calls `backward`, and the gradients are sent; with rounds it trains the model
    in place, and what changed is sent. The loop runs once. It leaves the server when it ends, by `break` or by an
    error, too.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        connection: Connection,
        loop: WorkerLoop | ClientLoop,
        batches: Iterable[Any] | None,
        steps: int | None,
        examples: int,
    ) -> None:
        self._parameters, self._connection, self._loop = parameters, connection, loop
        self._batches, self._steps, self._examples = batches, steps, examples
        self._has_begun = self._is_closed = False
        self._accepted = 0

    @property
    def name(self) -> str:
        """Under which the server knows this worker."""
        return self._connection.sender

    def __iter__(self) -> Iterator[Any]:
        """Batches if there are any, else numbers of steps or rounds."""
        if self._has_begun or self._is_closed:
            raise ClosedError(f"{self.name}: the loop of a worker runs once; call thinwire.join again")
        self._has_begun = True
        try:
            self._accepted += self._loop.enter()
            yield from self._rounds(self._loop) if isinstance(self._loop, ClientLoop) else self._updates(self._loop)
        finally:
            self.close()

    def report(self) -> dict[str, Any]:
        """Updates that were accepted, and bytes."""
        traffic = self._connection.traffic
        return {"accepted": self._accepted, "sent_bytes": traffic.sent, "received_bytes": traffic.received}

    def close(self) -> None:
        """Leave the server, unless the loop has done so. Iterating afterwards is a ClosedError."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._loop.is_inside and self._connection.is_connected:
            with contextlib.suppress(ThinwireError):
                self._loop.leave()
        self._connection.close()

    def _updates(self, loop: WorkerLoop) -> Iterator[Any]:
        steps = itertools.count() if self._steps is None else range(self._steps)
        batches = itertools.repeat(None) if self._batches is None else self._batches
        for _, batch in zip(steps, batches, strict=False):
            loop.pull()
            self._load(loop.party.weights)
            for parameter in self._parameters.values():
                parameter.grad = None
            yield loop.party.step if self._batches is None else batch
            self._accepted += loop.push(self._gradients())
        loop.leave(loop.party.step)

    def _rounds(self, loop: ClientLoop) -> Iterator[int]:
        while loop.pull():
            self._load(loop.party.weights)
            yield loop.party.round
            trained = {name: parameter.detach() for name, parameter in self._parameters.items()}
            self._accepted += loop.push(trained, self._examples)

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(weights[name])

    def _gradients(self) -> dict[str, Tensor]:
        found = {name: parameter.grad for name, parameter in self._parameters.items()}
        if all(gradient is None for gradient in found.values()):
            raise CompositionError(
                f"join: no parameter of {self.name} has a gradient; call backward() on the loss in the body of the "
                "loop, and no zero_grad() after it"
            )
        return {
            name: torch.zeros_like(self._parameters[name]) if gradient is None else _dense(gradient)
            for name, gradient in found.items()
        }


def _dense(gradient: Tensor) -> Tensor:
    plain = gradient.to_dense() if gradient.layout != torch.strided else gradient
    return plain.detach().contiguous()  # channels may come last in memory


def join(
    model: nn.Module | Mapping[str, Tensor],
    address: str,
    batches: Iterable[Any] | None = None,
    *,
    steps: int | None = None,
    examples: int = 1,
    exchange: str = "dense()",
    down: str | None = None,
    rounds: int = 0,
    seed: int = 1,
    task: str = "model",
    name: str | None = None,
    most_bad_rounds: int = 10,
    retry: float = 30.0,
    follow_restarts: bool = False,
    max_frame: int | None = None,
    secret_file: File | None = None,
    tls_certificate: File | None = None,
    tls_key: File | None = None,
    tls_ca: File | None = None,
) -> ModelWorker:
    """Work for a model that `thinwire.serve` holds, in a loop: `for batch in thinwire.join(model, address, batches)`.

    The body computes the loss of the batch and calls `backward()`; the optimizer is the server's. With `rounds` each
    pass is a federated round: the body trains the model in place, with an optimizer of its own.

    Args:
        model: the one that is served. Or tensors by name.
        address: of the server: HOST:PORT, [IPv6]:PORT or unix:PATH.
        batches: one for each step; the loop ends with them. Without, the loop gives the number of the step or round.
        steps: how many updates; None: as many as there are batches. Not with rounds.
        examples: that this client trains on in a round: its weight in the average.
        exchange, down, rounds, seed, task: those of the server.
        name: under which the server knows this worker; one that comes again under its name takes its place again.
            None: from host and process.
        most_bad_rounds: stop after so many updates in a row with a NaN or an infinity; 0: never.
        retry: seconds for which a server that is away is called.
        follow_restarts: go on when the server was restarted from its stored state.
        max_frame, secret_file, tls_certificate, tls_key, tls_ca: as for `serve`.

    Returns:
        The loop, also a context; its `report()` says what came of it.

    Raises:
        CompositionError: an option is wrong; nothing was opened. In the loop: PeerLostError (the server is away or was
        restarted), ConfigMismatch, AuthenticationError, NonFiniteError.
    """
    agreement = Agreement("join", task, exchange, down, rounds, seed, max_frame)
    _check(batches, steps, examples, rounds, name, most_bad_rounds)
    check_timeout("join", "retry", retry)
    check_flag("join", "follow_restarts", follow_restarts)
    parameters = trained_tensors("join", model)
    layers = specs_of({name: parameter.detach() for name, parameter in parameters.items()})
    credentials = Credentials(secret_file, tls_certificate, tls_key, tls_ca).line()
    sender = name or f"{socket.gethostname()[:64]}-{os.getpid()}"
    line = {**agreement.line(layers), **credentials}
    connection = Connection(address, sender, retry_s=retry, **line)
    half = (sender, layers, exchange, down, seed)
    loop: WorkerLoop | ClientLoop
    if rounds:
        client = FederatedClient(*half)
        loop = ClientLoop(connection, client, max_bad=most_bad_rounds, follow_restarts=follow_restarts)
    else:
        worker = Worker(*half)
        loop = WorkerLoop(connection, worker, max_bad=most_bad_rounds, follow_restarts=follow_restarts)
    return ModelWorker(parameters, connection, loop, batches, steps, examples)


def _check(batches: Any, steps: Any, examples: Any, rounds: int, name: Any, most_bad_rounds: Any) -> None:
    if batches is not None and not isinstance(batches, Iterable):
        raise CompositionError(f"join: batches must be something to iterate over, got {batches!r:.60}")
    if rounds and (batches is not None or steps is not None):
        raise CompositionError("join: with rounds the body of the loop trains on its own; leave out batches and steps")
    if not rounds and batches is None and steps is None:
        raise CompositionError("join: give batches, or steps, the number of updates; or rounds for a federated client")
    if steps is not None:
        check_int("join", "steps", steps, 1, "so many updates")
    check_int("join", "examples", examples, 1, "the number of examples that this client trains on")
    check_int("join", "most_bad_rounds", most_bad_rounds, 0, "0 means never")
    if name is not None and (not isinstance(name, str) or not name):
        raise CompositionError(f'join: name must be a text such as "worker-3", got {name!r}')
