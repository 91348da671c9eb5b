"""Servers and workers as processes: `serve` and `join` for your own model, and the loops that they consist of."""

from .loops import ClientLoop, Handler, WorkerLoop, run_client, run_worker
from .server import ModelServer, serve
from .worker import ModelWorker, join

__all__ = [
    "serve", "join", "ModelServer", "ModelWorker",
    "Handler", "WorkerLoop", "ClientLoop", "run_worker", "run_client",
]  # fmt: skip
