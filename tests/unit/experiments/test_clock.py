"""Clocks: who waited for whom is found without a barrier, and a trace has no gaps or overlaps of its own making."""

from thinwire.core import AllReduce
from thinwire.experiments.clock import Clock, chrome_trace, waiting_and_sending


def test_waiting_is_until_the_latest_arrival_and_the_rest_is_communication():
    early, late = [(0.0, 5.0), (10.0, 11.0)], [(3.0, 5.5), (9.0, 11.5)]
    waiting, sending = waiting_and_sending([early, late])
    assert waiting == (3.0 + 0.0 + 0.0 + 1.0) / 2
    assert sending == (2.0 + 2.5 + 1.0 + 1.5) / 2
    assert waiting_and_sending([[], []]) == (0.0, 0.0)


def test_a_timed_program_asks_and_answers_as_before():
    def program():
        first = yield AllReduce(None)
        second = yield AllReduce(None)
        return first + second

    clock = Clock(keep_steps=1)
    timed = clock.timed(program(), bucket=2)
    next(timed)
    timed.send(1)
    try:
        timed.send(2)
    except StopIteration as done:
        assert done.value == 3
    assert len(clock.requests) == 2 and clock.sums["encode"] > 0
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
    trace = chrome_trace(spans, [[(1.0, 4.0)], [(3.0, 4.0)]])
    shown = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    assert shown == [(0, "wait", 0.0, 2e6), (0, "send", 2e6, 1e6), (1, "compute", 0.0, 2e6), (1, "send", 2e6, 1e6)]
