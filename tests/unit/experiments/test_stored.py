"""A server that stores its state, is stopped, and goes on from it: in threads of one process."""

import itertools
import logging
import queue
import threading

import pytest
import torch

from thinwire import checkpoint
from thinwire.core import CheckpointError, CompositionError, ConfigMismatch, NonFiniteError
from thinwire.experiments import served, stored
from thinwire.experiments.company import Company
from thinwire.experiments.served import Service, Terms
from thinwire.experiments.stored import Storage, Store, StoredCompany
from thinwire.sync.client import FederatedClient
from thinwire.sync.federated import Federation
from thinwire.sync.optimizers import SGD
from thinwire.sync.sampling import Rounds
from thinwire.sync.server import Server
from thinwire.sync.serving import handler, join, take_part
from thinwire.sync.worker import Worker

DIGITS = Service("digits")


def server(**settings):
    return Server({"w": torch.ones(4)}, SGD(0.1, **settings))


def store_of(machine, folder, settings=None, **options):
    return Store(Storage(folder, **options), machine, settings or {"task": "t"})


def running(service, terms, storage=None):
    """(address line, queue of what came of it) of `served.serve` in a thread of its own."""
    told, found = queue.Queue(), queue.Queue()

    def run():
        try:
            found.put(served.serve(service, terms, "127.0.0.1:0", tell=told.put, storage=storage))
        except Exception as error:
            told.put(error)
            found.put(error)

    threading.Thread(target=run, daemon=True).start()
    return told.get(timeout=60), found


@pytest.mark.parametrize("every", [1, 4])
def test_a_state_is_stored_every_so_many_updates_before_the_update_is_answered(tmp_path, every):
    machine = server()
    store = store_of(machine, tmp_path, every=every)
    handle, seen = handler(StoredCompany(Company(machine, 1.0), store)), []

    def ask(message):
        reply = handle(message)
        if message.kind == "push":
            seen.append(checkpoint.steps(tmp_path)[-1])
        return reply

    join(ask, Worker("w", machine.layers), lambda weights, step: weights, 10)
    assert seen == [n - n % every for n in range(1, 11)]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_resumed_server_has_the_weights_the_counts_and_the_run_of_the_stored_one(tmp_path, momentum):
    machine = server(momentum=momentum)
    store = store_of(machine, tmp_path, every=2)
    company = StoredCompany(Company(machine, 1.0), store)
    join(handler(company), Worker("w", machine.layers), lambda weights, step: weights, 4)
    store.save()
    other = server(momentum=momentum)
    store_of(other, tmp_path, resume=True)
    assert torch.equal(other.weights["w"], machine.weights["w"]) and other.applied == 4
    assert other.run == machine.run and other.life != machine.life and not other.started
    assert join(handler(other), Worker("w", other.layers), lambda weights, step: weights, 3) == 3
    join(handler(machine), Worker("w", machine.layers), lambda weights, step: weights, 3)
    assert torch.equal(other.weights["w"], machine.weights["w"])


def test_rounds_are_stored_each_also_those_that_end_at_their_deadline(tmp_path):
    machine = Federation({"w": torch.zeros(4)}, Rounds(1, 5, deadline=1.0))
    company = StoredCompany(Company(machine, 1.0), store_of(machine, tmp_path))
    client = FederatedClient("c", machine.layers)
    client.welcomed(company.handle(client.join(), 0.0))
    company.expire(2.0)
    assert machine.round == 1 and checkpoint.steps(tmp_path)[-1] == 1


def test_what_is_stored_is_not_overwritten_unless_that_is_said(tmp_path):
    store_of(server(), tmp_path)
    with pytest.raises(CompositionError, match=r"holds the state .* --resume, begin anew with --start-over"):
        store_of(server(), tmp_path)
    anew = server()
    store_of(anew, tmp_path, start_over=True)
    assert checkpoint.load(tmp_path)["server"]["run"] == anew.run  # a server killed now is not resumed as the old one
    with pytest.raises(CompositionError, match=r"--resume: .* holds no state"):
        store_of(server(), tmp_path / "empty", resume=True)
    with pytest.raises(CompositionError, match="at least 1, got 0"):
        store_of(server(), tmp_path / "empty", every=0)
    with pytest.raises(CompositionError, match="give one of them"):
        Storage(tmp_path, resume=True, start_over=True)
    assert not (tmp_path / "empty").exists()


def test_a_state_of_other_settings_is_refused_by_their_names(tmp_path):
    store_of(server(), tmp_path, {"task": "digits", "exchange": "dense()", "seed": 1})
    with pytest.raises(ConfigMismatch, match=r"exchange: 'sign\(\)' here, 'dense\(\)' stored; seed: 2 here, 1 stored$"):
        store_of(server(), tmp_path, {"task": "digits", "exchange": "sign()", "seed": 2}, resume=True)
    with pytest.raises(CheckpointError, match="does not fit this server"):
        store_of(server(momentum=0.9), tmp_path, {"task": "digits", "exchange": "dense()", "seed": 1}, resume=True)
    checkpoint.save(tmp_path / "old", {"weights": {"w": torch.ones(4)}}, step=9)
    with pytest.raises(CompositionError, match="weights alone"):
        store_of(server(), tmp_path / "old", resume=True)


def test_a_disk_that_is_full_is_logged_and_does_not_stop_the_training(tmp_path, monkeypatch, caplog):
    machine = server()
    company = StoredCompany(Company(machine, 1.0), store_of(machine, tmp_path, every=2))
    real, calls = checkpoint.save, itertools.count()

    def save(*arguments, **settings):
        if next(calls) == 0:
            raise CheckpointError("no space left on device", 28)
        return real(*arguments, **settings)

    monkeypatch.setattr(stored.checkpoint, "save", save)
    with caplog.at_level(logging.ERROR, "thinwire"):
        assert join(handler(company), Worker("w", machine.layers), lambda weights, step: weights, 5) == 5
    assert "after 2 updates or rounds could not be stored: no space" in caplog.text
    assert checkpoint.steps(tmp_path)[-1] == 4


def test_a_served_task_that_is_resumed_goes_on_where_it_was(tmp_path):
    line, found = running(DIGITS, Terms(workers=1), Storage(tmp_path))
    served.work(DIGITS, line.removeprefix("listening on "), "w", (0, 1), 60)
    first = found.get(timeout=30)
    refused, _ = running(DIGITS, Terms(workers=1), Storage(tmp_path))
    assert isinstance(refused, CompositionError)
    line, found = running(DIGITS, Terms(workers=1), Storage(tmp_path, resume=True))
    assert f"(resumed from {tmp_path} after 60 updates: loss {first['loss']:.3f}, " in line
    served.work(DIGITS, line.split()[2], "w", (0, 1), 20)
    second = found.get(timeout=30)
    assert second["updates"] == 80 and second["loss"] < first["loss"] < 2.2


def test_a_federation_whose_clients_all_give_up_ends_and_says_so():
    service = Service("digits", rounds=50)
    line, found = running(service, Terms(workers=1, deadline=60))
    with pytest.raises(NonFiniteError, match="2 rounds in a row"):
        served.work(service, line.removeprefix("listening on "), "w", (0, 1), 3, lr=1e30, most_bad=2)
    result = found.get(timeout=30)
    assert result["unfinished"] == "all 1 clients left in round 2 of 50" and result["updates"] == 2


def test_a_worker_with_other_settings_is_told_which():
    line, _ = running(DIGITS, Terms(workers=1))
    address = line.removeprefix("listening on ")
    for other, words in (
        (
            Service("digits", exchange="ef(topk(density=0.1))"),
            r"exchange: ef\(topk\(density=0.1\)\) here, dense\(\) there$",
        ),
        (Service("digits", seed=7, down="sign()"), r"down: sign\(\) here, dense there; seed: 7 here, 1 there$"),
        (Service("digits", rounds=3), r"rounds: 3 here, 0 there$"),
    ):
        with pytest.raises(ConfigMismatch, match=words):
            served.work(other, address, "w", (0, 1), 1)
    served.work(DIGITS, address, "w", (0, 1), 1)


def test_two_forms_that_differ_are_told_by_what_differs():
    machine = Server({"w": torch.ones(4), "b": torch.ones(2)}, SGD(0.1), "ef(topk(k=1))", down="sign()")
    for worker, words in (
        (
            Worker("w", machine.layers, "dense()", "sign()"),
            "exchange: 'ef(topk(k=1))' at the server, 'dense()' at",
        ),
        (Worker("w", machine.layers, "ef(topk(k=1))"), "down: 'sign()' at the server, 'dense' at the worker"),
        (
            Worker("w", machine.layers[:1], "ef(topk(k=1))", "sign()"),
            "layer: 'b [2] float32' at the server, 'nothing' at",
        ),
    ):
        reply = machine.handle(worker.join(), 0.0)
        assert reply.fields["reason"] == "form" and words in reply.fields["text"], reply.fields["text"]
        assert reply.fields["text"].count("at the server") == 1
    several = Server({str(n): torch.ones(n + 1) for n in range(9)}, SGD(0.1))
    text = several.handle(Worker("w", machine.layers).join(), 0.0).fields["text"]
    assert text.count("at the server") == 4 and text.endswith("and 5 more")


def test_a_client_that_is_told_to_leave_the_federation_can_take_part_again_after_a_resume(tmp_path):
    machine = Federation({"w": torch.zeros(4)}, Rounds(1, 3))
    company = StoredCompany(Company(machine, 1.0), store_of(machine, tmp_path))
    nan = lambda weights, round: ({"w": weights["w"] + float("nan")}, 1)  # noqa: E731
    with pytest.raises(NonFiniteError):
        take_part(handler(company), FederatedClient("c", machine.layers), nan, most_bad_rounds=1)
    assert company.company.is_over(0.0)
    other = Federation({"w": torch.zeros(4)}, Rounds(1, 3))
    store_of(other, tmp_path, resume=True)
    again = Company(other, 1.0)
    assert not again.is_over(0.0)  # it waits for clients
    good = lambda weights, round: ({"w": weights["w"] + 1}, 1)  # noqa: E731
    assert take_part(handler(again), FederatedClient("c", other.layers), good) == 2 and again.is_over(0.0)
