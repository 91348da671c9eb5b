"""`thinwire.serve`: hold your own model for workers that train it."""

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
from ..renamed import refuse_renamed_arguments
from ..sync.federated import FederatedServer
from ..sync.optimizers import OuterOptimizer
from ..sync.server import GradientServer
from ..sync.texts import sync_text
from .loops import Handler
from .server_config import ServerConfig, read_optimizer
from .shared_settings import Credentials, File, SharedSettings, trained_tensors
from .state_store import SaveConfig, StateStore, count_done
from .supervisor import Supervisor

log = get_logger(__name__)
_POLL_S = 0.2  # between two checks of timeouts
_LEAVE_S = 10.0  # at the end, for connected workers to learn of it and to leave


class ModelServer(ClosedOnExit):
    """A model that workers train. It listens from the start, in its own threads.

    It ends by itself when all workers have left, or after the last federated round. Then, and when it is closed, the
    model has the trained weights.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        server: GradientServer | FederatedServer,
        address: str,
        transport_options: Mapping[str, Any],
        timeout_s: float,
        store: StateStore | None = None,
    ) -> None:
        self._parameters, self._server, self._store = parameters, server, store
        self._supervisor = Supervisor(server, timeout_s, store)
        self._handler = Handler(self._supervisor)
        self._closing, self._ended = threading.Event(), threading.Event()
        self._is_over = self._error_raised = False
        self._error: BaseException | None = None
        self._report: dict[str, Any] = {}
        self._listener = Listener(address, self._handler, on_lost=self._on_lost, **transport_options)
        self.address = self._listener.address
        self._thread = threading.Thread(target=self._run, name="thinwire-serve", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the training, at most `timeout_s` seconds; return whether it has ended.

        Raises:
            CheckpointError: the last state could not be saved.
            ClosedError: the server was closed before the training had ended.
        """
        if not self._ended.wait(timeout_s):
            return False
        self._error_raised = True
        if self._error is not None:
            raise self._error
        if not self._is_over:
            raise ClosedError(f"the server at {self.address} was closed before its training had ended: {self.status()}")
        return True

    def pull(self) -> None:
        """Copy the present weights into the model, for example to evaluate it during the training."""
        with torch.no_grad():
            weights = self._server.weights if self._ended.is_set() else self._handler.inspect(self._weights)
            for name, parameter in self._parameters.items():
                parameter.copy_(weights[name])

    def report(self) -> dict[str, Any]:
        """Results so far: updates (or rounds), rejections by reason, bytes, names of lost workers, staleness."""
        return dict(self._report) if self._ended.is_set() else self._handler.inspect(lambda now: self._collect_report())

    def status(self) -> str:
        """One line on the progress."""
        status = self._supervisor.status
        return status() if self._ended.is_set() else self._handler.inspect(lambda now: status())

    def close(self) -> None:
        """Stop listening, whether or not the training has ended; save the state; copy the weights into the model."""
        self._closing.set()
        self._thread.join()
        if self._error is not None and not self._error_raised:
            self._error_raised = True
            raise self._error

    def _weights(self, now: float) -> dict[str, Tensor]:
        return dict(self._server.weights)  # each step makes new tensors

    def _on_lost(self, error: PeerLostError) -> None:
        log.warning("%s", error)
        self._handler.inspect(lambda now: self._supervisor.mark_lost(error.peer, now))

    def _run(self) -> None:
        try:
            with self._listener:
                self._wait_until_over()
                if self._is_over:
                    self._save()  # before waiting for workers: this process may be killed meanwhile
                    self._let_workers_leave()
            if not self._is_over:
                self._save()  # after the last message, so that no accepted update is missing
        except BaseException as error:
            self._error = error
        try:
            self.pull()
        except BaseException as error:
            self._error = self._error or error
        self._report = self._collect_report()
        self._ended.set()

    def _save(self) -> None:
        store = self._store
        if store is not None:
            self._handler.inspect(lambda now: store.save())

    def _wait_until_over(self) -> None:
        while not self._closing.is_set():
            if self._handler.inspect(self._supervisor.is_over):
                self._is_over = True
                return
            self._closing.wait(_POLL_S)

    def _let_workers_leave(self) -> None:
        until = time.monotonic() + _LEAVE_S
        while self._is_over and self._listener.peers() and time.monotonic() < until and not self._closing.is_set():
            time.sleep(0.02)

    def _collect_report(self) -> dict[str, Any]:
        server, traffic = self._server, self._listener.traffic
        report: dict[str, Any] = {
            "updates": count_done(server),
            "rejected": dict(
                Counter(dict(self._listener.rejected)) + server.rejections
            ),  # copied: its thread counts on
            "received_bytes": traffic.received,
            "sent_bytes": traffic.sent,
            "lost": sorted(self._supervisor.lost),
        }
        if unfinished := self._supervisor.describe_unfinished():
            report["unfinished"] = unfinished
        if isinstance(server, GradientServer):
            report["staleness"] = {str(behind): count for behind, count in sorted(server.staleness_counts.items())}
        return report


@refuse_renamed_arguments("serve")
def serve(
    model: nn.Module | Mapping[str, Tensor],
    optimizer: str | OuterOptimizer,
    address: str = "127.0.0.1:0",
    *,
    composition: str = "dense()",
    downlink_compression: str | None = None,
    rounds: int = 0,
    workers: int = 2,
    max_lead: float = math.inf,
    round_timeout_s: float = 60.0,
    max_client_weight: float = math.inf,
    seed: int = 1,
    task: str = "model",
    save: File | None = None,
    save_every: int | None = None,
    resume: bool = False,
    start_over: bool = False,
    max_frame_mib: int | None = None,
    secret_file: File | None = None,
    tls_certificate: File | None = None,
    tls_key: File | None = None,
    tls_ca: File | None = None,
    block: bool = True,
) -> ModelServer:
    """Hold a model for workers that call `thinwire.join` with the same model, and train it with their updates.

    Workers push gradients, at most `max_lead` steps ahead of the slowest. With `rounds` they are federated clients that
    push the change of their weights by local training. Both sides pass the same composition, downlink_compression,
    rounds, seed and task; a worker with others is rejected, and its error names the differences.

    Args:
        model: The model to train; at the end its trainable parameters have the trained weights. Or tensors by
            name.
        optimizer: Optimizer of the server: "sgd(lr=0.05)", "adam(lr=0.01)", or any of torch.optim in lower case, such
            as "rmsprop(lr=0.01)". With rounds, "sgd(lr=1)" is FedAvg.
        address: HOST:PORT, [IPv6]:PORT or unix:PATH; with block=False port 0 picks one. Addresses that other machines
            can reach need a secret or certificates.
        composition: What workers send through, such as "ef(topk(density=0.01))".
        downlink_compression: Compressor of the model on its way to the workers; None: the whole weights.
        rounds: Number of federated rounds; 0: workers push gradients.
        workers: Training starts with this many workers; in federated rounds, clients per round.
        max_lead: Steps that a worker may be ahead of the slowest; 0: synchronous, inf: asynchronous.
        round_timeout_s: Seconds to wait for a worker's update, or for the updates of a round.
        max_client_weight: Largest weight of a federated client, in examples.
        seed: Seed of random compressors and of client sampling.
        task: Any name, the same on both sides.
        save: Folder for the server's state.
        save_every: Updates between two saves (default 100), or rounds (default 1).
        resume: Continue from the newest state in the folder.
        start_over: Start from the beginning although the folder has a state.
        max_frame_mib: Largest message in MiB; None: 64, or what a larger model needs, up to 1024.
        secret_file: File with the secret of both sides; None: the environment variable THINWIRE_SECRET, if it is set.
        tls_certificate: PEM file with the certificate of the server.
        tls_key: PEM file with its key.
        tls_ca: PEM file with the CA of the workers.
        block: Return when the training has ended; False: return at once, for `with` and `wait`.

    Returns:
        The handle of the server; `report()` has its results.

    Raises:
        CompositionError: An argument is not valid; no socket was opened.
        CheckpointError: A state could not be saved, or is damaged.

    Example:
        ```python
        thinwire.serve(model, "sgd(lr=0.05)", "0.0.0.0:7000", composition="ef(topk(density=0.01))", secret_file="key")
        ```
    """
    check_flag("serve", "block", block)
    if block and isinstance(address, str) and address.endswith(":0"):
        raise CompositionError(
            f"serve: address={address!r} picks a free port that workers cannot know; pass a port, or block=False and "
            "read `address` of the handle"
        )
    shared = SharedSettings("serve", task, composition, downlink_compression, rounds, seed, max_frame_mib)
    config = ServerConfig(workers, max_lead, round_timeout_s, max_client_weight)
    if save is None and (resume or start_over or save_every is not None):
        raise CompositionError("serve: resume, start_over and save_every need a folder; pass save=FOLDER")
    saving = None if save is None else SaveConfig(Path(save), save_every, resume, start_over)
    credentials = Credentials(secret_file, tls_certificate, tls_key, tls_ca).transport_options()
    parameters = trained_tensors("serve", model)
    server = config.make_server(shared, read_optimizer(optimizer), parameters)
    options = {**shared.transport_options(server.layers), **credentials}
    kind = sync_text(server.optimizer, part_text).partition("(")[0]  # its settings may change, its state belongs to it
    stored = {**shared.describe(server.layers), "rounds": bool(rounds), "optimizer": kind}  # rounds may be added
    store = None if saving is None else StateStore(saving, server, stored)
    handle = ModelServer(parameters, server, address, options, round_timeout_s, store)
    if resume:
        handle.pull()
    if block:
        with handle:
            handle.wait()
    return handle
