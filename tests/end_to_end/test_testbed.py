"""Networks of our own: built as asked, counted, and gone afterwards, come what may. No test here measures a time."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from thinwire.cli.main import main
from thinwire_lab.testbed.cleanup import NAMESPACES, start_ticks
from thinwire_lab.testbed.network import burst_bytes, explain_unavailable, network

pytestmark = pytest.mark.needs_root
SENT = 300_000
TALK = f"""
import os, socket
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(address) as server, server.accept()[0] as incoming:
        print("got", sum(len(piece) for piece in iter(lambda: incoming.recv(1 << 16), b"")))
else:
    for attempt in range(500):
        try:
            outgoing = socket.create_connection(address)
            break
        except OSError:
            import time; time.sleep(0.02)
    with outgoing:
        outgoing.sendall(bytes({SENT}))
"""


@pytest.fixture(scope="module", autouse=True)
def needs_networks():
    if reason := explain_unavailable():
        pytest.skip(reason)


def test_every_link_is_shaped_both_ways_and_two_networks_stand_side_by_side():
    with network(2, "100mbit") as shaped, network(3) as plain:
        mark = shaped.hosts[0].namespace.removesuffix("-0")
        for namespace, device in [(f"{mark}-{r}", "eth0") for r in range(2)] + [
            (f"{mark}-switch", f"port{r}") for r in range(2)
        ]:
            queue = json.loads(say("tc", "-n", namespace, "-j", "qdisc", "show", "dev", device))[0]
            assert (queue["kind"], queue["options"]["rate"]) == ("tbf", 100_000_000 // 8)
            assert queue["options"]["burst"] == pytest.approx(burst_bytes(1e8), rel=0.01)
        assert "tbf" not in say("tc", "-n", plain.hosts[0].namespace, "qdisc", "show", "dev", "eth0")
        names = {place.namespace for net in (shaped, plain) for place in net.hosts}
        assert len(names) == 5 and all((NAMESPACES / name).exists() for name in names)
    assert not any((NAMESPACES / name).exists() for name in names)


@pytest.mark.parametrize("rate", ["100mbit", "none", "lo"])
def test_workers_reach_each_other_and_their_bytes_are_counted(rate, capfd, tmp_path):
    file = tmp_path / "o.json"
    assert main(["testbed", "run", "--rate", rate, "--json", str(file), "--", sys.executable, "-c", TALK]) == 0
    out, table = capfd.readouterr()
    assert out == f"got {SENT}\n"
    assert ("links of 100mbit" if rate == "100mbit" else "not shaped") in table
    figures = json.loads(file.read_text())
    assert figures["exit_code"] == 0 and len(figures["ended"]) == 2
    if rate == "lo":
        assert figures["ended"][1]["counts"] is None and figures["total"]["sent_bytes"] > SENT
    else:
        zero, one = (worker["counts"] for worker in figures["ended"])
        assert SENT < one["sent_bytes"] < 1.2 * SENT and SENT < zero["received_bytes"] < 1.2 * SENT
        assert zero["sent_bytes"] < SENT / 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_it_is_told_to_end_or_killed(number):
    with started("--rate", "100mbit") as (parent, names):
        workers = sleepers(names)
        assert workers
        parent.send_signal(number)
        code = parent.wait(timeout=60)
        assert code == {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -9}[number]
        assert gone(names, workers)


def test_what_is_left_when_the_cleanup_process_is_killed_too_goes_with_the_next_network():
    with started() as (parent, names):
        workers = sleepers(names)
        (cleanup,) = (pid for pid in children(parent.pid) if pid not in workers)
        os.kill(cleanup, signal.SIGKILL)
        parent.kill()
        parent.wait(timeout=60)
        assert all((NAMESPACES / name).exists() for name in names)
        with network(1):
            assert gone(names, workers)


def test_a_network_whose_cleanup_process_was_killed_goes_all_the_same():
    others = children(os.getpid())
    with network(1) as net:
        (cleanup,) = (pid for pid in children(os.getpid()) if pid not in others)
        os.kill(cleanup, signal.SIGKILL)
    assert gone([net.hosts[0].namespace], [])


def test_loopback_workers_end_with_a_killed_parent():
    with started("--loopback", least=0) as (parent, _):
        until(lambda: len(children(parent.pid)) == 3)
        workers = children(parent.pid)
        parent.kill()
        parent.wait(timeout=60)
        assert gone([], workers)


def test_a_check_measures_every_kind_of_message(capsys, tmp_path):
    file = tmp_path / "o.json"
    assert main(["testbed", "check", "--rate", "50mbit", "--json", str(file)]) in (0, 1)  # as busy as the machine is
    assert "TCP goodput" in capsys.readouterr().out
    assert [row["message"] for row in json.loads(file.read_text())["rows"]] == ["long", "50 ms", "5 ms"]


@pytest.mark.parametrize("composition", ["ef(topk(density=0.01))", "dense()"])
def test_what_a_composition_claims_is_what_travels(composition, capsys, tmp_path):
    file = tmp_path / "o.json"
    assert main(["verify-wire", composition, "--steps", "2", "--json", str(file)]) == 0, capsys.readouterr().out
    assert "✓" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert found["holds"] and len(found["comparisons"]) == 6


def test_messages_too_short_for_their_claim_fail(capsys):
    assert main(["verify-wire", "topk(k=3)", "--numel", "100", "--steps", "1"]) == 1
    assert "✗" in capsys.readouterr().out


def test_a_composition_that_is_none_is_shown_with_its_place(capsys):
    assert main(["verify-wire", "ef(topkk(density=0.01))"]) == 2
    said = capsys.readouterr().err
    assert "no part is called 'topkk'" in said and "\n     ^" in said


@contextmanager
def started(*options, least=3):
    """A testbed that runs until it is ended, and the names of its namespaces."""
    command = [sys.executable, "-m", "thinwire.cli.main", "testbed", "run", *options, "--", "sleep", "1000"]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(namespaces_of(parent)) >= least)
        until(lambda: not least or len(sleepers(namespaces_of(parent))) == 2)
        yield parent, namespaces_of(parent)
    finally:
        parent.kill()
        parent.wait()


def namespaces_of(parent):
    return [path.name for path in NAMESPACES.glob(f"thinwire-{parent.pid}-*")]


def until(true, seconds=60):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def gone(names, workers):
    until(lambda: not any((NAMESPACES / name).exists() for name in names))
    until(lambda: not any(start_ticks(pid) for pid in workers))
    return True


def sleepers(names):
    """Workers that have begun; an `ip` at work on a namespace is seen in it, too."""
    pids = [int(pid) for name in names for pid in say("ip", "netns", "pids", name).split()]
    return [pid for pid in pids if program(pid) == "sleep"]


def program(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # it has just ended


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def say(*words):
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
