"""`thinwire.join`: train your own model as a worker of a server."""

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
from ..renamed import refuse_renamed_arguments
from ..sync.client import FederatedClient
from ..sync.uplink import make_specs
from ..sync.worker import GradientWorker
from .loops import ClientLoop, WorkerLoop
from .shared_settings import Credentials, File, SharedSettings, trained_tensors


class ModelWorker(ClosedOnExit):
    """The loop of one worker. Before each iteration the model gets the server's weights, after it an update is sent.

    Without rounds the body of the loop calls `backward`, and the gradients are sent; with rounds it trains the model
    in place, and the change of the weights is sent. The loop runs once. The worker leaves the server at the end of the
    loop, also after `break` or an error.
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
        self._has_started = self._is_closed = False
        self._accepted = 0

    @property
    def name(self) -> str:
        """The name under which the server knows this worker."""
        return self._connection.sender

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches, or without batches over the numbers of steps or rounds."""
        if self._has_started or self._is_closed:
            raise ClosedError(f"{self.name}: the loop of a worker runs once; call thinwire.join again for another")
        self._has_started = True
        try:
            self._accepted += self._loop.enter()
            yield from self._rounds(self._loop) if isinstance(self._loop, ClientLoop) else self._updates(self._loop)
        finally:
            self.close()

    def report(self) -> dict[str, Any]:
        """The number of accepted updates, and bytes sent and received."""
        traffic = self._connection.traffic
        return {"accepted": self._accepted, "sent_bytes": traffic.sent, "received_bytes": traffic.received}

    def close(self) -> None:
        """Leave the server, unless the loop has done so. Iterating afterwards raises ClosedError."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._loop.has_joined and self._connection.is_connected:
            with contextlib.suppress(ThinwireError):
                self._loop.leave()
        self._connection.close()

    def _updates(self, loop: WorkerLoop) -> Iterator[Any]:
        steps = itertools.count() if self._steps is None else range(self._steps)
        batches = itertools.repeat(None) if self._batches is None else self._batches
        for _, batch in zip(steps, batches, strict=False):
            loop.pull()
            self._load(loop.client.weights)
            for parameter in self._parameters.values():
                parameter.grad = None
            yield loop.client.step if self._batches is None else batch
            self._accepted += loop.push(self._gradients())
        loop.leave(loop.client.step)

    def _rounds(self, loop: ClientLoop) -> Iterator[int]:
        while loop.pull():
            self._load(loop.client.weights)
            yield loop.client.round
            trained = {name: parameter.detach() for name, parameter in self._parameters.items()}
            self._accepted += loop.push(trained, self._examples)

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(weights[name])

    def _gradients(self) -> dict[str, Tensor]:
        gradients = {name: parameter.grad for name, parameter in self._parameters.items()}
        if all(gradient is None for gradient in gradients.values()):
            raise CompositionError(
                f"join: no parameter of {self.name} has a gradient; call backward() on the loss in the body of the "
                "loop, and do not call zero_grad() after it"
            )
        return {
            name: torch.zeros_like(self._parameters[name]) if gradient is None else _to_dense(gradient)
            for name, gradient in gradients.items()
        }


def _to_dense(gradient: Tensor) -> Tensor:
    dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
    return dense.detach().contiguous()  # may be channels-last


@refuse_renamed_arguments("join")
def join(
    model: nn.Module | Mapping[str, Tensor],
    address: str,
    batches: Iterable[Any] | None = None,
    *,
    steps: int | None = None,
    examples: int = 1,
    composition: str = "dense()",
    downlink_compression: str | None = None,
    rounds: int = 0,
    seed: int = 1,
    task: str = "model",
    name: str | None = None,
    max_bad_rounds: int = 10,
    retry_timeout_s: float = 30.0,
    follow_restarts: bool = False,
    max_frame_mib: int | None = None,
    secret_file: File | None = None,
    tls_certificate: File | None = None,
    tls_key: File | None = None,
    tls_ca: File | None = None,
) -> ModelWorker:
    """Train a model that `thinwire.serve` holds: `for batch in thinwire.join(model, address, batches)`.

    The body of the loop computes the loss of the batch and calls `backward()`; the optimizer is the server's. With
    `rounds` each iteration is a federated round: the body trains the model in place, with its own optimizer.

    Args:
        model: The model that is served, or its tensors by name.
        address: Address of the server: HOST:PORT, [IPv6]:PORT or unix:PATH.
        batches: One batch per step; the loop ends with them. Without batches the loop yields the number of the step or
            round.
        steps: Number of updates; None: one for each batch. Not with rounds.
        examples: Number of examples that this client trains on in a round: its weight in the average.
        composition: What updates are sent through; the same as the server's.
        downlink_compression: Compressor of the model on its way to the worker; the same as the server's.
        rounds: Number of federated rounds, 0 for gradients; the same as the server's.
        seed: Seed of random compressors; the same as the server's.
        task: Any name; the same as the server's.
        name: Name under which the server knows this worker. A worker that returns under its name continues. None: host
            name and process number.
        max_bad_rounds: Stop after this many updates in a row with a NaN or an infinity; 0: never.
        retry_timeout_s: Seconds for which an unreachable server is tried.
        follow_restarts: Continue when the server was restarted from its saved state.
        max_frame_mib: Largest message in MiB; None: 64, or what a larger model needs, up to 1024.
        secret_file: File with the secret of both sides; None: the environment variable THINWIRE_SECRET, if it is set.
        tls_certificate: PEM file with the certificate of this worker.
        tls_key: PEM file with its key.
        tls_ca: PEM file with the CA of the server.

    Returns:
        The loop, which is also a context manager; `report()` has its results.

    Raises:
        CompositionError: An argument is not valid; no connection was opened.
        PeerLostError: In the loop: the server is unreachable or was restarted.
        ConfigMismatch: In the loop: the server has other settings, or another model.
        AuthenticationError: In the loop: the server has another secret or certificate.
        NonFiniteError: In the loop: too many updates had a NaN or an infinity.

    Example:
        ```python
        for inputs, labels in thinwire.join(model, "trainer:7000", loader, composition="ef(topk(density=0.01))"):
            loss_function(model(inputs), labels).backward()
        ```
    """
    shared = SharedSettings("join", task, composition, downlink_compression, rounds, seed, max_frame_mib)
    _check(batches, steps, examples, rounds, name, max_bad_rounds)
    check_timeout("join", "retry_timeout_s", retry_timeout_s)
    check_flag("join", "follow_restarts", follow_restarts)
    parameters = trained_tensors("join", model)
    layers = make_specs({name: parameter.detach() for name, parameter in parameters.items()})
    credentials = Credentials(secret_file, tls_certificate, tls_key, tls_ca).transport_options()
    sender = name or f"{socket.gethostname()[:64]}-{os.getpid()}"
    options = {**shared.transport_options(layers), **credentials}
    connection = Connection(address, sender, retry_s=retry_timeout_s, **options)
    arguments = (sender, layers, composition, downlink_compression, seed)
    loop: WorkerLoop | ClientLoop
    if rounds:
        client = FederatedClient(*arguments)
        loop = ClientLoop(connection, client, max_bad=max_bad_rounds, follow_restarts=follow_restarts)
    else:
        worker = GradientWorker(*arguments)
        loop = WorkerLoop(connection, worker, max_bad=max_bad_rounds, follow_restarts=follow_restarts)
    return ModelWorker(parameters, connection, loop, batches, steps, examples)


def _check(batches: Any, steps: Any, examples: Any, rounds: int, name: Any, max_bad_rounds: Any) -> None:
    if batches is not None and not isinstance(batches, Iterable):
        raise CompositionError(f"join: batches must be iterable, got {batches!r:.60}")
    if rounds and (batches is not None or steps is not None):
        raise CompositionError(
            "join: with rounds the body of the loop trains on its own data; leave out batches and steps"
        )
    if not rounds and batches is None and steps is None:
        raise CompositionError("join: pass batches, or steps (the number of updates), or rounds for a federated client")
    if steps is not None:
        check_int("join", "steps", steps, 1, "the number of updates")
    check_int("join", "examples", examples, 1, "the number of examples that this client trains on")
    check_int("join", "max_bad_rounds", max_bad_rounds, 0, "0 means never")
    if name is not None and (not isinstance(name, str) or not name):
        raise CompositionError(f'join: name must be a text such as "worker-3", got {name!r}')
