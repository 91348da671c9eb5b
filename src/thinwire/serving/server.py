"""A server for one's own model: `serve` holds it behind a listener, `ModelServer` is the handle of it."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..catalog import part_text
from ..core import ClosedError, ClosedOnExit, CompositionError, PeerLostError, check_flag
from ..core.logs import get_logger
from ..drivers.sockets import Listener
from ..sync.federated import Federation
from ..sync.optimizers import Outer
from ..sync.server import Server
from ..sync.texts import sync_text
from .agreement import Agreement, Credentials, File, trained_tensors
from .loops import Handler
from .store import Storage, Store, done_by
from .supervisor import Supervisor
from .terms import Terms, read_optimizer

log = get_logger(__name__)
_LOOK_S = 0.2  # between two looks at deadlines
_LINGER_S = 10.0  # at most, until all workers that are connected have heard the end and taken their leave


class ModelServer(ClosedOnExit):
    """A model that workers train: listens from the start, in threads of its own.

    It ends by itself when all workers have left, or after the last federated round. Then, and when it is closed, the
    model has the trained weights.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        machine: Server | Federation,
        address: str,
        line: Mapping[str, Any],
        patience: float,
        store: Store | None = None,
    ) -> None:
        self._parameters, self._machine, self._store = parameters, machine, store
        self._supervisor = Supervisor(machine, patience, store)
        self._handler = Handler(self._supervisor)
        self._closing, self._ended = threading.Event(), threading.Event()
        self._is_over = self._has_told = False
        self._error: BaseException | None = None
        self._report: dict[str, Any] = {}
        self._listener = Listener(address, self._handler, on_lost=self._lose, **line)
        self.address = self._listener.address
        self._thread = threading.Thread(target=self._watch, name="thinwire-serve", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the training has ended, within `timeout_s` or, without, however long that takes.

        Raises:
            CheckpointError: the last state could not be stored.
            ClosedError: the server was closed before the training had ended.
        """
        if not self._ended.wait(timeout_s):
            return False
        self._has_told = True
        if self._error is not None:
            raise self._error
        if not self._is_over:
            raise ClosedError(f"the server at {self.address} was closed before its training had ended: {self.news()}")
        return True

    def pull(self) -> None:
        """Copy the weights of now into the model, for a look at a training that goes on."""
        with torch.no_grad():
            weights = self._machine.weights if self._ended.is_set() else self._handler.look(self._weights)
            for name, parameter in self._parameters.items():
                parameter.copy_(weights[name])

    def report(self) -> dict[str, Any]:
        """What came of it so far: updates (or rounds), refusals by reason, bytes, lost workers by name, staleness."""
        return dict(self._report) if self._ended.is_set() else self._handler.look(lambda now: self._facts())

    def news(self) -> str:
        """One line on how far it is."""
        news = self._supervisor.news
        return news() if self._ended.is_set() else self._handler.look(lambda now: news())

    def close(self) -> None:
        """Stop listening, whether or not the training has ended; store the state; give the model the weights of now."""
        self._closing.set()
        self._thread.join()
        if self._error is not None and not self._has_told:
            self._has_told = True
            raise self._error

    def _weights(self, now: float) -> dict[str, Tensor]:
        return dict(self._machine.weights)  # a step makes new tensors

    def _lose(self, error: PeerLostError) -> None:
        log.warning("%s", error)
        self._handler.look(lambda now: self._supervisor.lose(error.peer, now))

    def _watch(self) -> None:
        try:
            with self._listener:
                self._wait_for_the_end()
                if self._is_over:
                    self._save()  # before workers are waited for: this process may be killed meanwhile
                    self._let_workers_leave()
            if not self._is_over:
                self._save()  # after the last message was handled, so that no accepted update is missing
        except BaseException as error:
            self._error = error
        try:
            self.pull()
        except BaseException as error:
            self._error = self._error or error
        self._report = self._facts()
        self._ended.set()

    def _save(self) -> None:
        store = self._store
        if store is not None:
            self._handler.look(lambda now: store.save())

    def _wait_for_the_end(self) -> None:
        while not self._closing.is_set():
            if self._handler.look(self._supervisor.is_over):
                self._is_over = True
                return
            self._closing.wait(_LOOK_S)

    def _let_workers_leave(self) -> None:
        until = time.monotonic() + _LINGER_S
        while self._is_over and self._listener.peers() and time.monotonic() < until and not self._closing.is_set():
            time.sleep(0.02)

    def _facts(self) -> dict[str, Any]:
        machine, traffic = self._machine, self._listener.traffic
        facts: dict[str, Any] = {
            "updates": done_by(machine),
            "refused": dict(Counter(dict(self._listener.rejected)) + machine.refusals),  # copied: its thread counts on
            "received_bytes": traffic.received,
            "sent_bytes": traffic.sent,
            "lost": sorted(self._supervisor.away),
        }
        if desertion := self._supervisor.desertion():
            facts["unfinished"] = desertion
        if isinstance(machine, Server):
            facts["staleness"] = {str(behind): count for behind, count in sorted(machine.staleness.items())}
        return facts


def serve(
    model: nn.Module | Mapping[str, Tensor],
    optimizer: str | Outer,
    address: str = "127.0.0.1:0",
    *,
    exchange: str = "dense()",
    down: str | None = None,
    rounds: int = 0,
    workers: int = 2,
    bound: float = math.inf,
    deadline: float = 60.0,
    max_client_weight: float = math.inf,
    seed: int = 1,
    task: str = "model",
    store: File | None = None,
    store_every: int | None = None,
    resume: bool = False,
    start_over: bool = False,
    max_frame: int | None = None,
    secret_file: File | None = None,
    tls_certificate: File | None = None,
    tls_key: File | None = None,
    tls_ca: File | None = None,
    block: bool = True,
) -> ModelServer:
    """Hold a model for workers that call `thinwire.join` with the same model, and train it with what they send.

    Workers push gradients, each at its own pace within `bound`; with `rounds` they are federated clients that push what
    their local training changed. Both sides give the same exchange, down, rounds, seed and task; a worker with others
    is refused, and told which differ.

    Args:
        model: its trainable parameters are served; in the end they have the trained weights. Or tensors by name.
        optimizer: of the server: "sgd(lr=0.05)", "adam(lr=0.01)", or any of torch.optim by its name in lower case,
            "rmsprop(lr=0.01)". "sgd(lr=1)" with rounds is FedAvg.
        address: HOST:PORT, [IPv6]:PORT or unix:PATH; with block=False port 0 picks one. For other machines to reach it,
            there must be a secret or certificates.
        exchange: what workers send through: "ef(topk(density=0.01))".
        down: a compressor for the way back; None: whole weights.
        rounds: federated rounds; 0: gradients.
        workers: how many begin, or make a round.
        bound: steps that a worker may be ahead of the slowest; 0: in step, inf: asynchronous.
        deadline: seconds to wait for a worker.
        max_client_weight: examples of a federated client that count, at most.
        seed: of all noise, and of the samples of clients.
        task: any name, the same on both sides.
        store: a folder for the state; store_every: updates or rounds between two; resume: go on from the state that is
            there; start_over: begin anew though there is one.
        max_frame: MiB of the longest message; None: 64, or what a larger model needs, up to 1024.
        secret_file: a file that both sides hold; None: the environment variable THINWIRE_SECRET, if there is one.
        tls_certificate, tls_key, tls_ca: PEM files of this side.
        block: return when the training has ended; False: at once, for `with` and `wait`.

    Returns:
        The handle; its `report()` says what came of it.

    Raises:
        CompositionError: an option is wrong; nothing was opened.
        CheckpointError: a state could not be stored, or is damaged.
    """
    check_flag("serve", "block", block)
    if block and isinstance(address, str) and address.endswith(":0"):
        raise CompositionError(
            f"serve: address={address!r} picks a free port, which no worker would learn; give a port, or block=False "
            "and read the handle's `address`"
        )
    agreement = Agreement("serve", task, exchange, down, rounds, seed, max_frame)
    terms = Terms(workers, bound, deadline, max_client_weight)
    if store is None and (resume or start_over or store_every is not None):
        raise CompositionError("serve: resume, start_over and store_every are about a stored state; give store=FOLDER")
    storage = None if store is None else Storage(Path(store), store_every, resume, start_over)
    credentials = Credentials(secret_file, tls_certificate, tls_key, tls_ca).line()
    parameters = trained_tensors("serve", model)
    machine = terms.make_machine(agreement, read_optimizer(optimizer), parameters)
    line = {**agreement.line(machine.layers), **credentials}
    kind = sync_text(machine.optimizer, part_text).partition("(")[0]  # its settings may change, its state is its own
    settings = {
        **agreement.settings(machine.layers),
        "rounds": bool(rounds),
        "optimizer": kind,
    }  # there may be more rounds
    kept = None if storage is None else Store(storage, machine, settings)
    server = ModelServer(parameters, machine, address, line, deadline, kept)
    if resume:
        server.pull()
    if block:
        with server:
            server.wait()
    return server
