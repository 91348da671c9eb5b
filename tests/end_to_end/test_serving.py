"""`thinwire serve` and `thinwire join`: processes that train one model over sockets."""

import json
import os
import re
import subprocess
import sys

import pytest

THINWIRE = [sys.executable, "-m", "thinwire.cli.main"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(*arguments, **environment):
    return subprocess.Popen(
        [*THINWIRE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=ENVIRONMENT | environment,
    )  # fmt: skip


def listening(server):
    for line in server.stderr:
        if found := re.search(r"listening on (\S+)", line):
            return found[1]
    raise AssertionError(f"the server did not listen: {server.communicate()}")


@pytest.mark.parametrize(
    ("common", "serving", "steps"),
    [
        (("--exchange", "ef(topk(density=0.05))"), ("--bound", "2"), "60"),
        (("--exchange", "ef(qsgd(bits=4))", "--rounds", "4"), ("--deadline", "20"), "15"),
    ],
    ids=("stale-synchronous", "federated"),
)
def test_two_workers_train_a_model_that_a_server_holds(common, serving, steps, tmp_path):
    server = start("serve", "digits", *common, *serving, "--workers", "2", "--json", str(tmp_path / "result.json"))
    workers = []
    try:
        address = listening(server)
        workers = [start("join", "digits", address, *common, "--share", f"{i}/2", "--steps", steps) for i in range(2)]
        told = [worker.communicate(timeout=100) for worker in workers]
        out, errors = server.communicate(timeout=30)
    finally:
        for process in (server, *workers):
            process.kill()
    assert [worker.returncode for worker in workers] == [0, 0] and server.returncode == 0, (told, errors)
    result = json.loads(out)
    assert result == json.loads((tmp_path / "result.json").read_text())
    accepted = [json.loads(text)["accepted"] for text, _ in told]
    assert result["accuracy"] > 0.5 and not result["refused"] and sum(accepted) >= result["updates"] > 0
    assert result["received_bytes"] >= sum(json.loads(text)["sent_bytes"] for text, _ in told) > 0


def test_an_address_that_others_reach_needs_a_secret():
    server = start("serve", "digits", "--address", "0.0.0.0:0")
    _, errors = server.communicate(timeout=60)
    assert server.returncode == 2 and "secret" in errors and "Traceback" not in errors


def test_who_has_another_secret_learns_nothing():
    server = start("serve", "digits", "--workers", "1", THINWIRE_SECRET="a" * 32)
    try:
        address = listening(server)
        stranger = start("join", "digits", address, THINWIRE_SECRET="b" * 32)
        _, errors = stranger.communicate(timeout=60)
    finally:
        server.kill()
    assert stranger.returncode == 77 and "Traceback" not in errors


def test_two_workers_without_a_share_have_two_names():
    server = start("serve", "digits", "--workers", "2", "--bound", "0")
    workers = []
    try:
        address = listening(server)
        workers = [start("join", "digits", address, "--steps", "5") for _ in range(2)]
        told = [worker.communicate(timeout=100) for worker in workers]
        out, errors = server.communicate(timeout=30)
    finally:
        for process in (server, *workers):
            process.kill()
    assert [worker.returncode for worker in workers] == [0, 0], (told, errors)
    result = json.loads(out)
    assert result["updates"] == 10 and result["lost"] == [] and result["refused"] == {}


@pytest.mark.parametrize("limit", ["0", "-1", "1.5", "nan", "1e9", "99999999"])
def test_a_limit_that_is_none_is_refused_in_one_line(limit):
    found = start("serve", "digits", f"--max-frame={limit}")
    _, errors = found.communicate(timeout=60)
    assert found.returncode == 2 and "MiB from 1 to" in errors and "Traceback" not in errors
