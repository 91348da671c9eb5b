"""Refresher: when it solves, and the time that it measures."""

import time

import torch

from thinwire import Exchanger, ImportanceSolver, Refresher, TensorSpec, World, lockstep, loopback, parse
from thinwire.importance import FunctionObjective

SPEC = TensorSpec("x", (6,), torch.float64)
CURVATURE = torch.arange(1.0, 7.0, dtype=torch.float64)
X = torch.ones(6, dtype=torch.float64)


def objective(delay_s=0.0):
    return FunctionObjective(
        lambda at: time.sleep(delay_s) or (CURVATURE * at["x"].square()).sum() / 2,
        lambda at: {"x": CURVATURE * at["x"]},
    )


def refreshed(delay_s=0.0, **settings):
    exchanger = Exchanger([SPEC], parse("impk(k=2)"))
    refresher = Refresher(ImportanceSolver("box", eta=0.1, **settings), exchanger.importance)
    loopback(refresher.refresh(objective(delay_s), {"x": X}, {"x": CURVATURE * X}, 0.1))
    return exchanger, refresher


def test_is_due_depends_on_the_step_alone():
    refresher = Refresher(ImportanceSolver(refresh_every=4), {})
    assert [step for step in range(10) if refresher.is_due(step)] == [0, 4, 8]


def test_w_reaches_the_exchanger_and_what_it_sends():
    exchanger, _ = refreshed(steps=3)
    w = exchanger.importance["x"]
    assert not torch.equal(w, torch.ones(6, dtype=torch.float64))
    sent = loopback(exchanger.run_step({"x": X}, 0, World(0, 1)))["x"]
    assert torch.equal(sent.nonzero().flatten(), w.topk(2).indices.sort().values)


def test_a_warm_start_takes_the_w_that_the_exchanger_holds():
    exchanger, refresher = refreshed(steps=3, warm_start=True, keep="last")
    loopback(refresher.refresh(objective(), {"x": X}, {"x": CURVATURE * X}, 0.1))
    whole, _ = refreshed(steps=6, keep="last")
    torch.testing.assert_close(exchanger.importance["x"], whole.importance["x"])
    assert refresher.num_refreshes == 2


def test_time_is_measured_and_changes_nothing():
    slow, refresher = refreshed(delay_s=0.01, steps=5)
    quick, _ = refreshed(steps=5)
    assert torch.equal(slow.importance["x"], quick.importance["x"])
    assert 0.06 <= refresher.solve_s <= time.perf_counter() - refresher._created
    assert 0 < refresher.time_fraction <= 1


def test_waiting_for_other_ranks_is_not_counted():
    solver, size = ImportanceSolver("box", eta=0.1, steps=5, shared=True), 2
    refreshers = [Refresher(solver, Exchanger([SPEC], parse("impk(k=2)")).importance) for _ in range(size)]
    asks = [(objective(0.02), {"x": X}, {"x": CURVATURE * X}, 0.1, 3, World(rank, size)) for rank in range(size)]
    started = time.perf_counter()
    lockstep([refresher.refresh(*ask) for refresher, ask in zip(refreshers, asks, strict=True)])
    elapsed = time.perf_counter() - started
    assert all(refresher.solve_s >= 6 * 0.02 for refresher in refreshers)
    assert sum(refresher.solve_s for refresher in refreshers) <= elapsed  # else time would be counted twice
    assert torch.equal(refreshers[0].importance["x"], refreshers[1].importance["x"])


def test_requests_carry_the_step():
    solver = ImportanceSolver("box", eta=0.1, steps=1, shared=True)
    program = Refresher(solver, {}).refresh(objective(), {"x": X}, {"x": X}, 0.1, 7, World(0, 2))
    request = program.send(None)
    assert request.step == 7 and {label.kind for label in request.labels} == {"importance"}
    assert program.send(request.tensor).step == 7
