"""`thinwire.serve` and `thinwire.join`: a model of one's own, its server and its workers in threads of one process."""

import math
import threading
import time

import pytest
import torch

import thinwire
from helpers.served_models import GOAL, batches, in_thread, loss, model, serve, take_part, work
from thinwire import checkpoint
from thinwire.core import AuthenticationError, CheckpointError, ClosedError, CompositionError, PeerLostError
from thinwire.serving import ModelServer, state_store
from thinwire.sync import SGD, FederatedServer, GradientServer, GradientWorker, Staleness


def threads():
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("thinwire")}


def test_workers_train_a_model_and_the_server_has_it_in_place():
    made = model()
    with serve(made=made, composition="ef(topk(k=2))", workers=2, max_lead=2) as server:
        workers = [in_thread(work, server.address, 60, i, f"w{i}", composition="ef(topk(k=2))") for i in range(2)]
        assert server.wait(30)
        for worker in workers:
            worker.join(10)
    report = server.report()
    assert report["updates"] == 120 and not report["rejected"] and not report["lost"] and report["staleness"]
    assert (made.weight - GOAL).norm() < 0.1 * GOAL.norm()


def test_one_worker_of_a_server_is_plain_training_to_the_bit():
    served, plain = model(), model()
    with serve("sgd(lr=0.05, momentum=0.9)", made=served) as server:
        assert work(server.address, 20) == 20 and server.wait(20)
    velocity = {name: torch.zeros_like(p) for name, p in plain.named_parameters()}
    for batch in batches(20):
        plain.zero_grad()
        loss(plain, batch).backward()
        for name, parameter in plain.named_parameters():
            velocity[name] = 0.9 * velocity[name] + parameter.grad
            parameter.data -= 0.05 * velocity[name]
    assert all(map(torch.equal, served.parameters(), plain.parameters()))


def test_federated_clients_train_in_the_loop_and_the_server_averages():
    made = model()
    with serve("sgd(lr=1)", made=made, rounds=8, workers=2) as server:
        clients = [in_thread(take_part, server.address, 8, f"c{i}", examples=10 + i) for i in range(2)]
        assert server.wait(30)
        for client in clients:
            client.join(10)
    assert server.report()["updates"] == 8 and "unfinished" not in server.report()
    assert (made.weight - GOAL).norm() < 0.3 * GOAL.norm()


def test_frozen_parameters_and_buffers_stay_each_processs_own():
    def made(value):
        normed = torch.nn.Sequential(model(), torch.nn.BatchNorm1d(1))
        normed[1].weight.requires_grad_(False).fill_(value)
        return normed

    served, local = made(1.0), made(2.0)
    with serve(made=served) as server:
        for inputs, targets in thinwire.join(local, server.address, batches(3), name="w"):
            (local(inputs) - targets).square().mean().backward()
        assert server.wait(20)
    assert served[1].weight.item() == 1.0 and local[1].weight.item() == 2.0
    assert served[1].num_batches_tracked == 0 and local[1].num_batches_tracked == 3 and served[0].weight.any()


def test_a_parameter_without_a_gradient_counts_as_zero_and_none_at_all_is_an_error():
    made = model()
    with serve(made=made) as server:
        local = model()
        for inputs, targets in thinwire.join(local, server.address, batches(2), name="w"):
            (inputs @ local.weight.T - targets).square().mean().backward()
        assert server.wait(20)
    assert made.weight.any() and not made.bias.any()
    with serve() as server:
        with pytest.raises(CompositionError, match=r"no parameter of w has a gradient; call backward\(\)"):
            for _ in thinwire.join(model(), server.address, batches(2), name="w"):
                pass
        assert server.wait(5)  # it left


def test_without_batches_the_loop_gives_numbers_of_steps():
    with serve() as server:
        local, steps = model(), []
        with thinwire.join(local, server.address, steps=3, name="w") as worker:
            for step in worker:
                steps.append(step)
                loss(local, next(batches(1, step))).backward()
        assert steps == [0, 1, 2] and server.wait(20) and worker.report()["accepted"] == 3
    with pytest.raises(ClosedError, match="runs once"):
        next(iter(worker))


@pytest.mark.parametrize("rounds", [0, 9])
@pytest.mark.parametrize("how", ["break", "error"])
def test_a_worker_leaves_when_its_loop_is_cut_short(how, rounds):
    """Nothing waits for it until a deadline, and its line is closed."""
    with serve(rounds=rounds, round_timeout_s=60) as server:
        local, before = model(), threads()
        of = {"rounds": rounds} if rounds else {"batches": batches(9)}
        try:
            for _ in thinwire.join(local, server.address, name="w", **of):
                assert "thinwire-beat" in threads()
                if how == "break":
                    break
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        assert server.wait(5) and threads() <= before
        assert server.report()["rejected"] == {} and server.report()["lost"] == []


def test_the_model_can_be_looked_at_while_it_is_trained():
    made, local = model(), model()
    with serve(made=made) as server:
        for place, batch in enumerate(thinwire.join(local, server.address, batches(4), name="w")):
            server.pull()
            assert torch.equal(made.weight, local.weight) and server.report()["updates"] == place
            assert f"{place} updates, 1 of 1 workers present" in server.status()
            loss(local, batch).backward()
        assert server.wait(20)


def test_a_server_that_is_closed_early_says_so_stores_its_state_and_leaves_nothing_open(tmp_path):
    before, made, local = threads(), model(), model()
    server = serve(made=made, save=tmp_path, save_every=1000)
    loop = iter(thinwire.join(local, server.address, batches(9), name="w", retry_timeout_s=0.2))
    for _ in range(3):
        loss(local, next(loop)).backward()
    server.close()
    with pytest.raises(PeerLostError):
        next(loop)
    server.close()
    with pytest.raises(ClosedError, match="was closed before its training had ended: 2 updates"):
        server.wait()
    assert threads() <= before and server.report()["updates"] == 2
    assert checkpoint.steps(tmp_path)[-1] == 2
    assert torch.equal(checkpoint.load(tmp_path)["weights"]["weight"], made.weight) and made.weight.any()


def test_serve_blocks_until_all_have_left_and_ctrl_c_closes_it(monkeypatch, tmp_path):
    made, found, before = model(), [], threads()
    address = f"unix:{tmp_path / 'server'}"
    blocking = in_thread(lambda: found.append(serve(made=made, address=address, block=True)))
    assert work(address, 5) == 5
    blocking.join(10)
    assert found[0].report()["updates"] == 5 and found[0].wait() and made.weight.any()

    def interrupt(self, timeout_s=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelServer, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        serve(address=address, block=True)
    assert threads() <= before and not (tmp_path / "server").exists()


def test_a_last_state_that_cannot_be_stored_is_an_error(monkeypatch, tmp_path):
    server = serve(save=tmp_path)

    def fail(*arguments, **options):
        raise CheckpointError("no space left on device", 28)

    monkeypatch.setattr(state_store.checkpoint, "save", fail)
    work(server.address, 2)
    with pytest.raises(CheckpointError, match="no space"):
        server.wait(20)
    server.close()  # told once


def test_a_secret_file_admits_workers_that_hold_it(tmp_path, monkeypatch):
    monkeypatch.delenv("THINWIRE_SECRET", raising=False)
    secret = tmp_path / "secret"
    secret.write_text("ab" * 32)
    secret.chmod(0o600)
    with serve(secret_file=secret) as server:
        with pytest.raises(AuthenticationError, match="secret"):
            work(server.address)
        monkeypatch.setenv("THINWIRE_SECRET", "ab" * 32)
        assert work(server.address) == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "serve: workers must be a whole number, at least 1, got 0"),
        ({"workers": True}, "serve: workers must be a whole number"),
        ({"rounds": -1}, "serve: rounds must be a whole number, at least 0"),
        ({"max_lead": math.nan}, "serve: max_lead must be a number from 0, or inf, got nan"),
        ({"round_timeout_s": "1 s"}, "serve: round_timeout_s must be a number from 0"),
        ({"composition": thinwire.parse("sign()")}, 'serve: composition must be a text such as "ef'),
        ({"composition": "ef(topk(densty=0.1))"}, "density"),
        ({"composition": "powersgd(rank=2)"}, "PowerSGD needs answers of all ranks"),
        ({"downlink_compression": "nonsense()"}, "nonsense"),
        ({"save_every": 5}, "pass save=FOLDER"),
        ({"max_frame_mib": 0}, "serve: max_frame_mib must be a whole number, at least 1, got 0"),
        ({"task": ""}, "serve: task must be a text"),
        ({"seed": 1.5}, "serve: seed must be a whole number, got 1.5"),
        ({"block": 1}, "serve: block must be True or False, got 1"),
        ({"block": True}, r"serve: address='127.0.0.1:0' picks a free port .* pass a port, or block=False"),
        ({"address": "0.0.0.0:0"}, "can be reached from other machines"),
        ({"address": "here"}, "HOST:PORT"),
        ({"tls_certificate": "missing.pem", "tls_key": "missing.key"}, "tls: cannot use"),
        ({"optimizer": "sgd(lr=0)"}, "lr must be positive"),
        ({"optimizer": "adan()"}, "adan"),
        ({"optimizer": 0.05}, r"serve: optimizer must be a text such as .* got 0.05"),
        ({"optimizer": SGD}, "serve: optimizer must be a text such as"),
        ({"made": torch.nn.ReLU()}, "serve: model has no parameter that requires a gradient"),
        ({"made": [1.0]}, r"serve: model must be a torch.nn.Module or tensors by name, got \[1.0\]"),
    ],
)
def test_options_of_a_server_are_refused_before_it_listens(options, words):
    before = threads()
    with pytest.raises((CompositionError, thinwire.IncompatibleParts), match=words):
        serve(**options)
    assert threads() <= before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "join: pass batches, or steps"),
        ({"steps": 0}, "join: steps must be a whole number, at least 1"),
        ({"steps": 3, "rounds": 2}, "join: with rounds the body of the loop trains on its own"),
        ({"batches": 5}, "join: batches must be iterable, got 5"),
        ({"steps": 3, "name": ""}, "join: name must be a text"),
        ({"steps": 3, "retry_timeout_s": 0}, "join: retry_timeout_s must be a number of seconds"),
        ({"rounds": 3, "examples": 0}, "join: examples must be a whole number, at least 1"),
        ({"steps": 3, "max_bad_rounds": -1}, "join: max_bad_rounds must be a whole number, at least 0"),
        ({"steps": 3, "follow_restarts": "yes"}, "join: follow_restarts must be True or False"),
        ({"steps": 3, "composition": "vote()"}, "needs answers of all ranks"),
        ({"steps": 3, "address": "203.0.113.1:7000"}, "can be reached from other machines"),
    ],
)
def test_options_of_a_worker_are_refused_before_it_connects(options, words, monkeypatch):
    monkeypatch.delenv("THINWIRE_SECRET", raising=False)
    with pytest.raises((CompositionError, thinwire.IncompatibleParts), match=words):
        thinwire.join(model(), **{"address": "127.0.0.1:9", **options})


def test_a_server_that_is_not_there_is_named():
    began = time.monotonic()
    with pytest.raises(PeerLostError, match=r"w: the server at 127\.0\.0\.1:9 is lost"):
        work("127.0.0.1:9", retry_timeout_s=0.2)
    assert time.monotonic() - began < 5


def test_what_users_build_servers_from_is_exported():
    assert issubclass(GradientServer, object) and issubclass(FederatedServer, object)
    machine = GradientServer({"w": torch.ones(2)}, SGD(0.1), staleness=Staleness(max_lead=1))
    assert machine.handle(GradientWorker("w", machine.layers).join(), 0.0).kind == "welcome"
