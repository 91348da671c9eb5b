import os
import signal
import time
from pathlib import Path

import pytest
import torch

from thinwire import PeerLostError
from thinwire.core import AllReduce
from thinwire.drivers.processes import loopback_device, run_ranks

HERE = "test_jobs_of_processes"


@pytest.fixture(autouse=True)
def jobs_can_be_imported(tmp_path, monkeypatch):
    (tmp_path / f"{HERE}.py").write_text(Path(__file__).read_text())
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))


def add_up(driver, argument, tell):
    def program():
        for i in range(argument["times"]):
            total = yield AllReduce(torch.tensor([float(driver.world.rank + 1)]))
            tell(i)
        return total.item()

    return driver.run(program())


def fail_on_rank_one(driver, argument, tell):
    if driver.world.rank == 1:
        raise ValueError("a reason of its own")
    return add_up(driver, {"times": 1}, tell)


def die_on_rank_one(driver, argument, tell):
    if driver.world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return add_up(driver, {"times": 1}, tell)


def hang(driver, argument, tell):
    time.sleep(60)


def test_results_come_in_rank_order_and_news_from_rank_zero():
    news = []
    assert run_ranks(2, f"{HERE}:add_up", {"times": 3}, on_progress=news.append) == [3.0, 3.0]
    assert news == [0, 1, 2]


def test_the_rank_at_fault_is_named_with_its_own_words():
    with pytest.raises(PeerLostError, match=r"rank 1 of 2 failed:[\s\S]*a reason of its own"):
        run_ranks(2, f"{HERE}:fail_on_rank_one", None)


def test_a_killed_rank_is_noticed_at_once():
    started = time.monotonic()
    with pytest.raises(PeerLostError, match="of 2 failed"):
        run_ranks(2, f"{HERE}:die_on_rank_one", None)
    assert time.monotonic() - started < 30  # far below the driver's timeout


def test_time_runs_out():
    with pytest.raises(PeerLostError, match="did not finish in time"):
        run_ranks(1, f"{HERE}:hang", None, timeout_s=6)


def test_an_error_of_the_callback_ends_the_run_with_that_error():
    def refuse(news):
        raise KeyError(f"cannot make anything of {news}")

    with pytest.raises(KeyError, match="cannot make anything of 0"):
        run_ranks(2, f"{HERE}:add_up", {"times": 2}, on_progress=refuse, timeout_s=60)


@pytest.mark.parametrize(
    ("system", "device"), [("linux", "lo"), ("darwin", "lo0"), ("freebsd14", "lo0"), ("win32", "lo")]
)
def test_gloo_is_given_the_loopback_device_of_the_system(monkeypatch, system, device):
    monkeypatch.setattr("sys.platform", system)
    assert loopback_device() == device
