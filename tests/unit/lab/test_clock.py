"""Clocks: who waited for whom is found without a barrier, and a trace has no gaps or overlaps of its own making."""

import json
import sys
from pathlib import Path

import pytest

from thinwire.core import AllReduce
from thinwire_lab.measuring.clock import Clock, make_chrome_trace, split_waiting_and_sending
from thinwire_lab.measuring.folder import RunFolderError
from thinwire_lab.measuring.request_log import read_requests


def asking(times):
    for _ in range(times):
        yield AllReduce(None)


def ask(clock, times):
    for _ in clock.time_program(asking(times)):
        pass


def calls_of(function):
    """How many Python functions it enters, itself included: work without a clock."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_waiting_is_until_the_latest_arrival_and_the_rest_is_communication():
    early, late = [(0.0, 5.0), (10.0, 11.0)], [(3.0, 5.5), (9.0, 11.5)]
    waiting, sending = split_waiting_and_sending([early, late])
    assert waiting == (3.0 + 0.0 + 0.0 + 1.0) / 2
    assert sending == (2.0 + 2.5 + 1.0 + 1.5) / 2
    assert split_waiting_and_sending([[], []]) == (0.0, 0.0)


def test_a_timed_program_asks_and_answers_as_before(tmp_path):
    def program():
        first = yield AllReduce(None)
        second = yield AllReduce(None)
        return first + second

    clock = Clock(keep_steps=1, log=tmp_path / "times" / "rank0.bin")
    timed = clock.time_program(program(), bucket=2)
    next(timed)
    timed.send(1)
    try:
        timed.send(2)
    except StopIteration as done:
        assert done.value == 3
    assert clock.requests.count == 2 and clock.sums["encode"] > 0
    assert {span.bucket for span in clock.spans} == {2}
    assert clock.elapsed() > 0


def test_only_the_last_steps_are_traced():
    clock = Clock(keep_steps=2)
    for step in range(5):
        clock.step = step
        with clock.timing("compute"):
            pass
    assert [span.step for span in clock.spans] == [3, 4] and not Clock().spans


def test_a_trace_splits_requests_into_waiting_and_sending():
    spans = [[["request", 0, 1, 1.0, 4.0]], [["compute", 0, -1, 1.0, 3.0], ["request", 0, 1, 3.0, 4.0]]]
    trace = make_chrome_trace(spans, [[(1.0, 4.0)], [(3.0, 4.0)]])
    shown = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    assert shown == [(0, "wait", 0.0, 2e6), (0, "send", 2e6, 1e6), (1, "compute", 0.0, 2e6), (1, "send", 2e6, 1e6)]


def test_a_hundred_thousand_requests_cost_no_more_to_look_at_or_to_store_than_ten(tmp_path):
    clocks = [Clock(keep_steps=0, log=tmp_path / f"{times}.bin") for times in (10, 100_000)]
    for clock, times in zip(clocks, (10, 100_000), strict=True):
        ask(clock, times)
    few, many = (calls_of(clock.elapsed) for clock in clocks)
    assert few == many
    few, many = (json.dumps(clock.state_dict()) for clock in clocks)
    assert len(many) < len(few) + 20, "a checkpoint has sums and a count"
    pairs = read_requests(tmp_path / "100000.bin")
    assert len(pairs) == 100_000 and clocks[1].request_s == pytest.approx(sum(b - a for a, b in pairs))
    assert clocks[1].elapsed() == pytest.approx(clocks[1].sums["encode"] + clocks[1].request_s)


def test_a_clock_that_goes_on_from_a_checkpoint_forgets_what_came_after_it(tmp_path):
    first = Clock(log=tmp_path / "log")
    ask(first, 3)
    state = first.state_dict()
    kept = read_requests(tmp_path / "log")
    ask(first, 5000)  # some of it is written before it is cut
    second = Clock(log=tmp_path / "log")
    second.load_state_dict(state)
    assert second.elapsed() == state["sums"]["encode"] + state["request_s"]
    ask(second, 2)
    pairs = read_requests(Path(second.to_dict()["requests"]))
    assert len(pairs) == 5 and pairs[:3] == kept
    third = Clock(log=tmp_path / "log")  # from the beginning
    ask(third, 1)
    assert len(read_requests(Path(third.to_dict()["requests"]))) == 1


def test_a_checkpoint_that_has_all_requests_itself_is_still_read(tmp_path):
    clock = Clock(log=tmp_path / "log")
    clock.load_state_dict({"sums": {"encode": 1.0}, "requests": [[0.0, 0.5], [2.0, 4.0]]})
    assert clock.elapsed() == 3.5
    assert read_requests(Path(clock.to_dict()["requests"])) == [(0.0, 0.5), (2.0, 4.0)]


def test_a_log_that_is_too_short_is_an_error_with_a_remedy(tmp_path):
    clock = Clock(log=tmp_path / "job" / "times" / "log")
    with pytest.raises(
        RunFolderError, match=r"has the times of 0 requests, the checkpoint has 7; remove .*job and resume"
    ):
        clock.load_state_dict({"sums": {}, "requests": 7, "request_s": 1.0})
