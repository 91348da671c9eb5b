"""The compressed model that a GradientServer sends to its workers."""

import pytest
import torch

from helpers.gradient_server import begin, equal, gradient, straggling, team, welcome
from thinwire.core import Message
from thinwire.sync.members import Staleness
from thinwire.sync.optimizers import SGD
from thinwire_lab.published.simulated_workers import run_simulation


@pytest.mark.parametrize("down", ["topk(k=3)", "qsgd()", "sign()", "randomk(k=2, scaled=false)"])
def test_workers_hold_what_the_server_believes_them_to_hold(down):
    server, workers = team(3, "ef(topk(k=2))", Staleness(max_lead=2), SGD(0.05), down=down)
    run_simulation(server, workers, gradient, straggling(workers), updates=150)
    for worker in workers:
        believed = server.copies.pending.get(worker.name, server.copies.copies[worker.name])
        assert equal(believed, worker.weights)


def test_a_lost_model_is_worked_out_anew():
    server, (worker,) = team(1, down="topk(k=2)")
    welcome(server, worker)
    assert begin(server, worker)
    worker.settle(server.handle(worker.push(gradient("w0", 0, worker.weights)), 0.0))
    server.handle(worker.pull(), 0.0)  # the reply is lost
    assert begin(server, worker)
    assert equal(server.copies.pending["w0"], worker.weights)
    odd = Message("pull", "w0", fields={**worker.pull().fields, "changes_received": 9})
    assert server.handle(odd, 0.0).fields["reason"] == "out of sync"


def test_a_compressed_model_reaches_the_workers_in_the_end():
    server, (worker,) = team(1, down="topk(k=2)")
    server.weights = {name: w + 1 for name, w in server.weights.items()}
    welcome(server, worker)
    server.weights = {name: w - 3 for name, w in server.weights.items()}
    for _ in range(10):
        assert begin(server, worker)
    assert all(torch.allclose(worker.weights[n], w, atol=1e-5) for n, w in server.weights.items())
