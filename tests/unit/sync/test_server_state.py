"""Storing a GradientServer and its workers, and going on from there."""

import pytest

from helpers.gradient_server import begin, equal, gradient, straggling, team, welcome
from thinwire import ProtocolError, checkpoint
from thinwire.sync.members import Staleness
from thinwire.sync.optimizers import Adam
from thinwire_lab.published.simulated_workers import run_simulation


def test_a_worker_is_not_stored_while_its_update_is_unanswered():
    server, (worker,) = team(1, "ef(topk(k=2))")
    welcome(server, worker)
    assert begin(server, worker)
    message = worker.push(gradient("w0", 0, worker.weights))
    with pytest.raises(ProtocolError, match="unanswered"):
        worker.state_dict()
    worker.settle(server.handle(message, 0.0))
    assert worker.state_dict()["numbers"]["last_accepted"] == 0


@pytest.mark.parametrize("staleness", [Staleness(max_lead=0), Staleness(max_lead=2), Staleness(max_staleness=20)])
@pytest.mark.parametrize("exchange, down", [("ef(topk(k=2))", "sign()"), ("ef21(qsgd())", None)])
def test_a_stored_server_and_its_workers_go_on_to_the_bit(tmp_path, staleness, exchange, down):
    def halfway():
        server, workers = team(3, exchange, staleness, Adam(0.05), down=down)
        run_simulation(server, workers, gradient, straggling(workers), updates=40)
        return server, workers

    server, workers = halfway()
    checkpoint.save(tmp_path, {"server": server.state_dict(), "workers": {w.name: w.state_dict() for w in workers}})
    run_simulation(server, workers, gradient, straggling(workers), updates=80)
    stored = checkpoint.load(tmp_path)
    other, others = team(3, exchange, staleness, Adam(0.05), down=down)
    other.load_state_dict(stored["server"])
    for worker in others:
        worker.load_state_dict(stored["workers"][worker.name])
    run_simulation(other, others, gradient, straggling(others), updates=80)
    assert equal(server.weights, other.weights)
    assert (server.version, server.staleness_counts, server.rejections) == (
        other.version,
        other.staleness_counts,
        other.rejections,
    )
