"""A server that stores its state, is stopped, and goes on from it: in threads of one process."""

import itertools
import logging

import pytest
import torch

from helpers import served_models
from helpers.served_models import GOAL, model, take_part, work
from thinwire import checkpoint
from thinwire.core import CheckpointError, CompositionError, ConfigMismatch, NonFiniteError
from thinwire.drivers.in_process import InProcess
from thinwire.serving import state_store as stored
from thinwire.serving.loops import Handler, run_client, run_worker
from thinwire.serving.state_store import SaveConfig, StateStore
from thinwire.serving.supervisor import Supervisor
from thinwire.sync.client import FederatedClient
from thinwire.sync.federated import FederatedServer
from thinwire.sync.optimizers import SGD
from thinwire.sync.sampling import FederatedConfig
from thinwire.sync.server import GradientServer
from thinwire.sync.worker import GradientWorker


def server(**settings):
    return GradientServer({"w": torch.ones(4)}, SGD(0.1, **settings))


def store_of(machine, folder, settings=None, **options):
    return StateStore(SaveConfig(folder, **options), machine, settings or {"task": "t"})


def to(machine, name="w"):
    return InProcess(Handler(machine), name)


@pytest.mark.parametrize("every", [1, 4])
def test_a_state_is_stored_every_so_many_updates_before_the_update_is_answered(tmp_path, every):
    machine = server()
    store = store_of(machine, tmp_path, every=every)
    handle, seen = Handler(Supervisor(machine, 1.0, store)), []

    def answer(message):
        reply = handle(message)
        if message.kind == "push":
            seen.append(checkpoint.steps(tmp_path)[-1])
        return reply

    run_worker(InProcess(answer, "w"), GradientWorker("w", machine.layers), lambda weights, step: weights, 10)
    assert seen == [n - n % every for n in range(1, 11)]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_resumed_server_has_the_weights_the_counts_and_the_run_of_the_stored_one(tmp_path, momentum):
    machine = server(momentum=momentum)
    store = store_of(machine, tmp_path, every=2)
    run_worker(
        to(Supervisor(machine, 1.0, store)), GradientWorker("w", machine.layers), lambda weights, step: weights, 4
    )
    store.save()
    other = server(momentum=momentum)
    store_of(other, tmp_path, resume=True)
    assert torch.equal(other.weights["w"], machine.weights["w"]) and other.applied == 4
    assert other.run_id == machine.run_id and other.server_epoch != machine.server_epoch and not other.started
    assert run_worker(to(other), GradientWorker("w", other.layers), lambda weights, step: weights, 3) == 3
    run_worker(to(machine), GradientWorker("w", machine.layers), lambda weights, step: weights, 3)
    assert torch.equal(other.weights["w"], machine.weights["w"])


def test_rounds_are_stored_each_also_those_that_end_at_their_deadline(tmp_path):
    machine = FederatedServer({"w": torch.zeros(4)}, FederatedConfig(1, 5, round_timeout_s=1.0))
    supervisor = Supervisor(machine, 1.0, store_of(machine, tmp_path))
    client = FederatedClient("c", machine.layers)
    client.handle_welcome(supervisor.handle(client.join(), 0.0))
    supervisor.expire(2.0)
    assert machine.round == 1 and checkpoint.steps(tmp_path)[-1] == 1


def test_what_is_stored_is_not_overwritten_unless_that_is_said(tmp_path):
    store_of(server(), tmp_path)
    with pytest.raises(CompositionError, match=r"has the state .* \(--resume\), start again with start_over"):
        store_of(server(), tmp_path)
    anew = server()
    store_of(anew, tmp_path, start_over=True)
    assert (
        checkpoint.load(tmp_path)["server"]["run_id"] == anew.run_id
    )  # a server killed now is not resumed as the old one
    with pytest.raises(CompositionError, match=r"resume: .* has no state"):
        store_of(server(), tmp_path / "empty", resume=True)
    with pytest.raises(CompositionError, match="save_every must be a whole number, at least 1, got 0"):
        store_of(server(), tmp_path / "empty", every=0)
    with pytest.raises(CompositionError, match="pass one of them"):
        SaveConfig(tmp_path, resume=True, start_over=True)
    assert not (tmp_path / "empty").exists()


def test_a_state_of_other_settings_is_refused_by_their_names(tmp_path):
    store_of(server(), tmp_path, {"task": "digits", "composition": "dense()", "seed": 1})
    with pytest.raises(
        ConfigMismatch, match=r"composition: 'sign\(\)' here, 'dense\(\)' saved; seed: 2 here, 1 saved$"
    ):
        store_of(server(), tmp_path, {"task": "digits", "composition": "sign()", "seed": 2}, resume=True)
    with pytest.raises(CheckpointError, match="does not fit this server"):
        store_of(server(momentum=0.9), tmp_path, {"task": "digits", "composition": "dense()", "seed": 1}, resume=True)
    checkpoint.save(tmp_path / "old", {"weights": {"w": torch.ones(4)}}, step=9)
    with pytest.raises(CompositionError, match="weights only"):
        store_of(server(), tmp_path / "old", resume=True)


def test_a_disk_that_is_full_is_logged_and_does_not_stop_the_training(tmp_path, monkeypatch, caplog):
    machine = server()
    supervisor = Supervisor(machine, 1.0, store_of(machine, tmp_path, every=2))
    real, calls = checkpoint.save, itertools.count()

    def save(*arguments, **settings):
        if next(calls) == 0:
            raise CheckpointError("no space left on device", 28)
        return real(*arguments, **settings)

    monkeypatch.setattr(stored.checkpoint, "save", save)
    with caplog.at_level(logging.ERROR, "thinwire"):
        assert run_worker(to(supervisor), GradientWorker("w", machine.layers), lambda weights, step: weights, 5) == 5
    assert "after 2 updates or rounds could not be saved: no space" in caplog.text
    assert checkpoint.steps(tmp_path)[-1] == 4


def test_a_served_model_that_is_resumed_goes_on_where_it_was(tmp_path):
    first, second = model(), model()
    with served_models.serve(made=first, save=tmp_path) as server:
        work(server.address, 60)
        server.wait(20)
    with pytest.raises(CompositionError, match="has the state"):
        served_models.serve(save=tmp_path)
    with served_models.serve(made=second, save=tmp_path, resume=True) as server:
        assert torch.equal(second.weight, first.weight) and server.report()["updates"] == 60
        work(server.address, 20, noise=1)
        server.wait(20)
    assert server.report()["updates"] == 80 and checkpoint.steps(tmp_path)[-1] == 80
    assert (second.weight - GOAL).norm() < (first.weight - GOAL).norm() < 0.3 * GOAL.norm()


def test_a_federation_ends_and_says_so_when_all_clients_give_up():
    with served_models.serve("sgd(lr=1)", rounds=50) as server:
        with pytest.raises(NonFiniteError, match="2 rounds in a row"):
            take_part(server.address, 50, lr=1e30, max_bad_rounds=2)
        assert server.wait(20)
    assert server.report()["unfinished"] == "all 1 clients left in round 2 of 50" and server.report()["updates"] == 2


def test_a_worker_with_other_settings_is_told_which():
    with served_models.serve() as server:
        for other, words in (
            (
                {"composition": "ef(topk(density=0.1))"},
                r"composition: ef\(topk\(density=0.1\)\) here, dense\(\) there$",
            ),
            (
                {"seed": 7, "downlink_compression": "sign()"},
                r"downlink_compression: sign\(\) here, dense there; seed: 7 here, 1 there$",
            ),
            ({"task": "another"}, r"task: another here, model there$"),
        ):
            with pytest.raises(ConfigMismatch, match=words):
                work(server.address, 1, **other)
        with pytest.raises(ConfigMismatch, match=r"rounds: 3 here, 0 there$"):
            take_part(server.address, 3)
        assert work(server.address, 1) == 1


def test_two_forms_that_differ_are_told_by_what_differs():
    machine = GradientServer(
        {"w": torch.ones(4), "b": torch.ones(2)}, SGD(0.1), "ef(topk(k=1))", downlink_compression="sign()"
    )
    for worker, words in (
        (
            GradientWorker("w", machine.layers, "dense()", "sign()"),
            "composition: 'ef(topk(k=1))' at the server, 'dense()' at",
        ),
        (
            GradientWorker("w", machine.layers, "ef(topk(k=1))"),
            "downlink_compression: 'sign()' at the server, 'dense' at the worker",
        ),
        (
            GradientWorker("w", machine.layers[:1], "ef(topk(k=1))", "sign()"),
            "layer: 'b [2] float32' at the server, 'nothing' at",
        ),
    ):
        reply = machine.handle(worker.join(), 0.0)
        assert reply.fields["reason"] == "config" and words in reply.fields["text"], reply.fields["text"]
        assert reply.fields["text"].count("at the server") == 1
    several = GradientServer({str(n): torch.ones(n + 1) for n in range(9)}, SGD(0.1))
    text = several.handle(GradientWorker("w", machine.layers).join(), 0.0).fields["text"]
    assert text.count("at the server") == 4 and text.endswith("and 5 more")


def test_a_client_that_is_told_to_leave_the_federation_can_take_part_again_after_a_resume(tmp_path):
    machine = FederatedServer({"w": torch.zeros(4)}, FederatedConfig(1, 3))
    supervisor = Supervisor(machine, 1.0, store_of(machine, tmp_path))
    nan = lambda weights, round: ({"w": weights["w"] + float("nan")}, 1)  # noqa: E731
    with pytest.raises(NonFiniteError):
        run_client(to(supervisor, "c"), FederatedClient("c", machine.layers), nan, max_bad_rounds=1)
    assert supervisor.is_over(0.0)
    other = FederatedServer({"w": torch.zeros(4)}, FederatedConfig(1, 3))
    store_of(other, tmp_path, resume=True)
    again = Supervisor(other, 1.0)
    assert not again.is_over(0.0)  # it waits for clients
    good = lambda weights, round: ({"w": weights["w"] + 1}, 1)  # noqa: E731
    assert run_client(to(again, "c"), FederatedClient("c", other.layers), good) == 2 and again.is_over(0.0)
