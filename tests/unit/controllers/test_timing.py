"""L-GreCo by time: what a byte costs in each bucket, measured with clocks that the test winds."""

from __future__ import annotations

import logging
import math
import random

import pytest
import torch

from thinwire import Exchanger, TensorSpec, World, parse
from thinwire.controllers.estimates import compute_bytes
from thinwire.core import CompositionError, Context, LayerObservation
from thinwire.drivers.lockstep import lockstep

LAYERS = [TensorSpec(f"layer{i}", (24, 32), torch.float32) for i in range(4)]
BUCKETS = [["layer3", "layer2"], ["layer1", "layer0"]]
TEXT = "ef(adapt(topk(density=0.05), controller=lgreco(objective='time', calibration_steps=30, start=35, every=20, window=5)))"


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Run:
    """Some workers whose buckets take seconds per byte as told, more or less; each rank's clock has its own errors."""

    def __init__(self, rates, size=2, text=TEXT, jitter_s=1e-5, clocks=True, buckets=BUCKETS, seed=5):
        self.rates, self.jitter_s, self.step, self.clocked = rates, jitter_s, 0, clocks
        self.buckets = [buckets] * size if callable(buckets) else [lambda step: buckets] * size
        self.clocks = [Clock() for _ in range(size)]
        self.exchangers = [Exchanger(LAYERS, parse(text), seed=seed) for _ in range(size)]
        for exchanger, clock in zip(self.exchangers, self.clocks, strict=True):
            exchanger.set_clock(clock if clocks else None)
        self.told = []

    def gradients(self, rank):
        generator = torch.Generator().manual_seed(1000 * self.step + rank)
        return {s.name: (i + 1) * torch.randn(s.shape, generator=generator) ** 3 for i, s in enumerate(LAYERS)}

    def worker(self, rank):
        exchanger, clock, world = self.exchangers[rank], self.clocks[rank], World(rank, len(self.clocks))
        gradients = self.gradients(rank)
        yield from exchanger.begin(self.step, world)
        for at, names in enumerate(self.buckets[rank](self.step)):
            seconds = self.rates[at] * sum(self.expected(exchanger, name) for name in names)
            generator = torch.Generator().manual_seed(7000 * self.step + 10 * rank + at)
            seconds += self.jitter_s * float(torch.rand(1, generator=generator))
            yield from slow(exchanger.exchange({n: gradients[n] for n in names}, self.step, world), clock, seconds)
        exchanger.settle()

    def expected(self, exchanger, name):
        ((spec, menu),) = [(s, m) for s, m in exchanger.menus if s.name == name]
        return float(compute_bytes([menu.options[exchanger.plan[name]]], torch.zeros(spec.shape), spec, 2, 0)[0])

    def go(self, steps):
        for _ in range(steps):
            lockstep([self.worker(rank) for rank in range(len(self.clocks))])
            self.step += 1
            plans = [dict(e.plan) for e in self.exchangers]
            assert all(plan == plans[0] for plan in plans), f"step {self.step}: {plans}"
        return self.exchangers[0].controller_report()


def slow(program, clock, seconds):
    answer, first = None, True
    while True:
        try:
            request = program.send(answer)
        except StopIteration as done:
            return done.value
        answer = yield request
        if first:
            clock.now, first = clock.now + seconds, False


def sent_by(run, names):
    return sum(run.expected(run.exchangers[0], name) for name in names)


def test_rates_of_buckets_are_found_and_the_dear_one_is_spared():
    run = Run(rates=[1e-6, 8e-6])
    told = run.go(40)
    assert told["objective"] == "time" and told["r2"] > 0.95 and told["decisions"] == 1
    assert told["seconds_per_mb"][0] == pytest.approx(1.0, rel=0.1)
    assert told["seconds_per_mb"][1] == pytest.approx(8.0, rel=0.1)
    other = Run(rates=[8e-6, 1e-6])
    other.go(40)
    assert sent_by(run, BUCKETS[1]) < sent_by(other, BUCKETS[1])
    assert sent_by(run, BUCKETS[0]) > sent_by(other, BUCKETS[0])


def test_random_plans_differ_between_buckets_and_agree_within_one():
    run = Run(rates=[1e-6, 1e-6])
    drawn = []
    for _ in range(20):
        run.go(1)
        drawn.append([[run.exchangers[0].plan[name] for name in names] for names in BUCKETS])
    later = drawn[1:]  # before the first exchange no rank knows the buckets
    assert all(len(set(options)) == 1 for plan in later for options in plan)
    assert sum(plan[0] != plan[1] for plan in later) > 10


def test_after_calibration_layers_have_their_reference_until_the_first_decision():
    run = Run(rates=[1e-6, 2e-6])
    run.go(31)
    (_, menu), *_ = run.exchangers[0].menus
    assert set(run.exchangers[0].plan.values()) == {menu.default}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"clocks": False}, "no rank measured time"),
        ({"buckets": [[s.name for s in LAYERS]]}, "one bucket"),
        ({"jitter_s": 10.0}, "R²"),
        ({"text": TEXT.replace("calibration_steps=30", "calibration_steps=7")}, "fewer samples"),
    ],
)
def test_where_time_cannot_be_fitted_bytes_decide_and_the_log_says_so(options, why, caplog):
    with caplog.at_level(logging.WARNING, "thinwire"):
        run = Run(rates=[1e-6, 3e-6], **options)
        told = run.go(40)
    assert told["objective"] == "bytes" and why in told["because"]
    assert sum("bytes instead of time" in record.message for record in caplog.records) == 1
    by_bytes = Run(rates=[1e-6, 3e-6], clocks=False, text=TEXT.replace("objective='time', calibration_steps=30, ", ""))
    by_bytes.go(40)
    assert told["decisions"] == 1 and len(by_bytes.exchangers[0].plans) == 1


@pytest.mark.parametrize("broken", [math.nan, 0.0, -3.0, math.inf])
def test_samples_that_are_no_times_are_ignored(broken):
    run = Run(rates=[1e-6, 4e-6])
    run.go(10)
    run.clocks[1].now = broken if not math.isfinite(broken) else run.clocks[1].now
    for _ in range(10):
        run.exchangers[1].set_clock(iter_clock(broken))
        run.go(1)
        run.exchangers[1].set_clock(run.clocks[1])
    run.clocks[1].now = 5.0
    told = run.go(20)
    assert told["objective"] == "time"
    assert told["seconds_per_mb"][1] == pytest.approx(4.0, rel=0.15)


def iter_clock(broken):
    """A clock whose differences are `broken`."""
    readings = iter([0.0, broken, broken])
    return lambda: next(readings, broken)


def test_samples_of_other_buckets_are_forgotten_when_buckets_are_rebuild():
    first, second = [["layer0", "layer1", "layer2", "layer3"]], BUCKETS
    run = Run(rates=[1e-6, 5e-6], buckets=lambda step: first if step < 8 else second)
    told = run.go(40)
    assert told["objective"] == "time"
    assert told["seconds_per_mb"][1] == pytest.approx(5.0, rel=0.1)


@pytest.mark.parametrize("stop", [3, 17, 30, 36])
def test_a_run_resumed_at_any_time_makes_the_same_plans_and_rates(stop):
    whole, begun = Run(rates=[1e-6, 8e-6]), Run(rates=[1e-6, 8e-6])
    whole.go(60)
    begun.go(stop)
    again = Run(rates=[1e-6, 8e-6])
    again.step = begun.step
    for ours, theirs, clock, was in zip(again.exchangers, begun.exchangers, again.clocks, begun.clocks, strict=True):
        ours.load_state_dict(theirs.state_dict())
        clock.now = was.now
    again.go(60 - stop)
    ours, theirs = again.exchangers[0], whole.exchangers[0]
    assert ours.plans == theirs.plans
    assert {**ours.controller_report(), "seconds": 0} == {**theirs.controller_report(), "seconds": 0}
    for name, state in ours.states.items():
        assert torch.equal(state.residual, theirs.states[name].residual)


def test_a_decision_before_calibration_has_ended_is_refused():
    with pytest.raises(
        CompositionError, match="start must be at least calibration_steps, got start=10 and calibration_steps=50"
    ):
        parse("ef(adapt(topk(density=0.05), controller=lgreco(objective='time', start=10)))")
    with pytest.raises(CompositionError, match="objective must be one of bytes, time"):
        parse("ef(adapt(topk(density=0.05), controller=lgreco(objective='money')))")


def dawdling_clock(rank):
    """Random delays of its own, some of them no times at all."""
    draw, odd = random.Random(rank), (math.nan, -1.0, 0.0, math.inf)
    return lambda: draw.choice(odd) if draw.random() < 0.05 else draw.expovariate(1.0)


DAWDLING = "adapt(topk(density=0.3), max_factor=1.5, controller=lgreco(objective='time', calibration_steps=40, start=50, every=50, window=2, error_levels=500))"
TINY = [TensorSpec(f"layer{i}", (2, 8), torch.float32) for i in range(3)]


def test_ten_thousand_steps_with_ranks_that_dawdle_bring_no_disagreement():
    """RELIABILITY R18, for the controller alone: 199 decisions of three ranks, each with tensors and a clock of its own."""
    size = 3
    controllers = [Exchanger(TINY, parse(DAWDLING)).controller for _ in range(size)]
    plans, states = map(list, zip(*[controller.init(TINY) for controller in controllers], strict=True))
    clocks = [dawdling_clock(rank) for rank in range(size)]
    tensors = [[torch.randn(2, 8) ** 3 for _ in range(5)] for _ in range(size)]
    disagreements = changes = 0
    for step in range(10_000):
        contexts = [Context(step, World(rank, size), 1, plans[rank]) for rank in range(size)]
        before = plans[0]
        outs = lockstep([c.replan(p, s, x) for c, p, s, x in zip(controllers, plans, states, contexts, strict=True)])
        plans, states = [plan for plan, _ in outs], [state for _, state in outs]
        disagreements += any(plan != plans[0] for plan in plans)
        changes += plans[0] != before
        for rank in range(size):
            for at, spec in enumerate(TINY):
                tensor = tensors[rank][(step + at) % 5]
                observation = LayerObservation(tensor, None, lambda tensor=tensor: tensor, at, clocks[rank]())
                states[rank] = controllers[rank].observe(spec, observation, states[rank], contexts[rank])
    assert disagreements == 0 and changes > 40
    assert controllers[0].report(states[0])["decisions"] == 199


def test_exchanges_of_ranks_that_dawdle_go_by_one_plan():
    size = 2
    exchangers = [Exchanger(TINY, parse(DAWDLING), seed=1) for _ in range(size)]
    for rank, exchanger in enumerate(exchangers):
        exchanger.set_clock(dawdling_clock(rank))

    def worker(rank, step):
        exchanger, world = exchangers[rank], World(rank, size)
        yield from exchanger.begin(step, world)
        for spec in TINY:
            generator = torch.Generator().manual_seed(10 * step + rank)
            yield from exchanger.exchange({spec.name: torch.randn(2, 8, generator=generator)}, step, world)
        exchanger.settle()

    for step in range(200):
        lockstep([worker(rank, step) for rank in range(size)])  # a disagreement would be a ProtocolError
        assert exchangers[0].plan == exchangers[1].plan
    assert exchangers[0].plans == exchangers[1].plans
    assert exchangers[0].controller_report()["decisions"] == 3


def test_layers_with_menus_may_be_in_any_bucket():
    """Others travel dense, in buckets of their own before and between."""
    layers = [TensorSpec(f"layer{i}", (24, 32)) for i in range(6)]
    adaptive = parse(TEXT)
    rules = {spec.name: adaptive if spec.name in ("layer2", "layer5") else parse("dense()") for spec in layers}
    exchangers = [Exchanger(layers, rules, seed=5) for _ in range(2)]
    clock = Clock()
    for exchanger in exchangers:
        exchanger.set_clock(clock)

    def worker(rank, step):
        exchanger, world = exchangers[rank], World(rank, 2)
        yield from exchanger.begin(step, world)
        for at, spec in enumerate(layers):
            generator = torch.Generator().manual_seed(100 * step + 10 * at + rank)
            given = {spec.name: torch.randn(spec.shape, generator=generator)}
            sent = exchanger.plan[spec.name] * (at + 1) * 1e-4
            yield from slow(exchanger.exchange(given, step, world), clock, sent if rank == 0 else 0.0)
        exchanger.settle()

    for step in range(40):
        lockstep([worker(rank, step) for rank in range(2)])
        told = exchangers[0].controller_report()
    assert told["objective"] == "time" and sorted(told["seconds_per_mb"]) == [2, 5]
    assert told["seconds_per_mb"][5] > told["seconds_per_mb"][2] > 0


@pytest.mark.parametrize("part", ["topk(density=0.05)", "qsgd(bits=4)"])
def test_a_rank_that_skips_alone_draws_the_plans_of_the_others(part):
    text = f"adapt(gossip({part}, ring()), controller=lgreco(objective='time', calibration_steps=8, start=8, every=8))"
    exchangers = [Exchanger(TINY, parse(text), seed=1) for _ in range(4)]
    for step in range(10):
        given = [{s.name: torch.full(s.shape, float(r + 1)) for s in TINY} for r in range(4)]
        if step == 0:
            given[1]["layer0"][0, 0] = math.nan
        lockstep([e.run_step(t, step, World(r, 4)) for r, (e, t) in enumerate(zip(exchangers, given, strict=True))])
        assert all(e.plan == exchangers[0].plan for e in exchangers)
    assert [e.skipped_steps for e in exchangers] == [0, 1, 0, 0]
