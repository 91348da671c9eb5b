"""`thinwire serve` and `thinwire join`: processes that train one model over sockets."""

import json
import os
import re
import signal
import subprocess
import sys
import time

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
        (("--composition", "ef(topk(density=0.05))"), ("--max-lead", "2"), "60"),
        (("--composition", "ef(qsgd(bits=4))", "--rounds", "4"), ("--round-timeout", "20"), "15"),
    ],
    ids=("stale-synchronous", "federated"),
)
def test_two_workers_train_a_model_that_a_server_holds(common, serving, steps, tmp_path):
    server = start("serve", "digits", *common, *serving, "--workers", "2", "--json", str(tmp_path / "result.json"))
    workers = []
    try:
        address = listening(server)
        workers = [start("join", "digits", address, *common, "--shard", f"{i}/2", "--steps", steps) for i in range(2)]
        told = [worker.communicate(timeout=100) for worker in workers]
        out, errors = server.communicate(timeout=30)
    finally:
        for process in (server, *workers):
            process.kill()
    assert [worker.returncode for worker in workers] == [0, 0] and server.returncode == 0, (told, errors)
    result = json.loads(out)
    assert result == json.loads((tmp_path / "result.json").read_text())
    accepted = [json.loads(text)["accepted"] for text, _ in told]
    assert result["accuracy"] > 0.5 and not result["rejected"] and sum(accepted) >= result["updates"] > 0
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
    server = start("serve", "digits", "--workers", "2", "--max-lead", "0")
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
    assert result["updates"] == 10 and result["lost"] == [] and result["rejected"] == {}


@pytest.mark.parametrize("limit", ["0", "-1", "1.5", "nan", "1e9", "99999999"])
def test_a_limit_that_is_none_is_refused_in_one_line(limit):
    found = start("serve", "digits", f"--max-frame-mib={limit}")
    _, errors = found.communicate(timeout=60)
    assert found.returncode == 2 and "MiB from 1 to" in errors and "Traceback" not in errors


@pytest.mark.timeout(300)
def test_a_server_that_was_killed_is_resumed_and_workers_that_were_told_go_on(tmp_path):
    """The other worker stops and says why; nothing begins from zero."""
    state, common = (
        tmp_path / "state",
        ("serve", "digits", "--workers", "2", "--lr", "0.5", "--save", str(tmp_path / "state")),
    )
    processes = [start(*common, "--save-every", "20")]
    try:
        address = listening(processes[0])
        join = ("join", "digits", address, "--steps", "300", "--retry-timeout", "100")
        told = start(*join, "--shard", "0/2", "--follow-restarts")
        untold = start(*join, "--shard", "1/2")
        processes += [told, untold]
        wait_until(lambda: stored_updates(state) >= 100, 60)
        processes[0].send_signal(signal.SIGKILL)
        processes[0].wait(30)
        stored = stored_updates(state)
        resumed = start(*common, "--address", address, "--save-every", "20", "--resume")
        processes.append(resumed)
        line = next(line for line in resumed.stderr if "listening" in line)
        _, errors = untold.communicate(timeout=60)
        assert untold.returncode == 75 and "the server was restarted" in errors and "--follow-restarts" in errors
        out, errors = told.communicate(timeout=100)
        assert told.returncode == 0, errors
        result = json.loads(resumed.communicate(timeout=60)[0])
    finally:
        for process in processes:
            process.kill()
    found = re.search(r"after (\d+) updates: .*?loss ([0-9.]+)", line)
    assert found and int(found[1]) == stored and float(found[2]) < 1.0, line  # it begins at 2.3
    assert resumed.returncode == 0 and result["updates"] > stored and result["loss"] < float(found[2]) + 0.05
    assert json.loads(out)["accepted"] >= 290 and stored_updates(state) == result["updates"]


def stored_updates(folder):
    """Of the newest state that is there."""
    return max((int(path.name.split("-")[3]) for path in folder.glob("save-*")), default=0)


def wait_until(true, seconds):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
