import time

import pytest

from thinwire.drivers.processes import loopback_device
from thinwire_lab.testbed.launch import make_environment, run_workers
from thinwire_lab.testbed.network import loopback_network


@pytest.fixture
def two():
    with loopback_network(2) as net:
        yield net


def shell(script):
    return ["sh", "-c", script]


def test_workers_find_what_torchrun_would_tell_them(two, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for rank in range(2):
        told = make_environment(two, rank)
        assert (told["RANK"], told["LOCAL_RANK"]) == (str(rank), str(rank))
        assert (told["WORLD_SIZE"], told["LOCAL_WORLD_SIZE"]) == ("2", "2")
        assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("127.0.0.1", str(two.port))
        assert (told["GLOO_SOCKET_IFNAME"], told["OMP_NUM_THREADS"]) == (loopback_device(), "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert make_environment(two, 0)["OMP_NUM_THREADS"] == "2"  # somebody's wish


def test_rank_zero_speaks_for_itself_and_others_are_silent_while_all_is_well(two, capfd):
    outcome = run_workers(two, shell("echo $RANK here"))
    assert outcome.exit_code == 0 and [worker.exit_code for worker in outcome.workers] == [0, 0]
    assert capfd.readouterr() == ("0 here\n", "")
    assert outcome.total is None and all(worker.counts is None for worker in outcome.workers)


def test_the_first_failure_ends_all_and_its_words_are_shown(two, capfd):
    started = time.monotonic()
    outcome = run_workers(two, shell('if [ "$RANK" = 1 ]; then echo a reason; exit 7; fi; exec sleep 60'))
    assert outcome.exit_code == 7 and time.monotonic() - started < 30
    assert [worker.exit_code for worker in outcome.workers] == [128 + 15, 7]
    assert "[rank 1] a reason" in capfd.readouterr().err


def test_a_worker_ended_by_a_signal_has_a_shells_code(two):
    assert run_workers(two, shell('if [ "$RANK" = 1 ]; then kill -9 $$; fi; exec sleep 60')).exit_code == 128 + 9


def test_what_a_worker_started_ends_with_it(two, tmp_path):
    outcome = run_workers(two, shell(f"(sleep 2; touch {tmp_path}/$RANK) & exit 0"))
    assert outcome.exit_code == 0
    time.sleep(2.5)
    assert not list(tmp_path.iterdir())
