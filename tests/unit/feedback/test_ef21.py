"""EF21 over several steps: states are values, a bad or failed step changes none, a resumed run has the same next step."""

import pytest
import torch

from helpers.cases import draw
from helpers.same_bits import alike
from thinwire import TensorSpec, World, lockstep, parse
from thinwire.aggregators import gather_mean
from thinwire.core import DecodeError, GatheredPayloads, Payload
from thinwire.exchange import Exchanger

SHAPES = {"a": (300, 40), "b": (7,), "c": (250, 280)}
SPECS = [TensorSpec(name, shape) for name, shape in SHAPES.items()]
EVERY = pytest.mark.parametrize("text", ["ef21(topk(density=0.01))", "ef21(qsgd(bits=4))", "ef21(powersgd(rank=2))"])
RANKS = 2


def gradients(step, rank):
    return {
        name: draw("gaussian", shape, seed=100 * step + 10 * rank + i) for i, (name, shape) in enumerate(SHAPES.items())
    }


def run(exchangers, step, spoil=None):
    """One step of all ranks, with the averages written over the gradients, as under DDP."""
    tensors = [gradients(step, rank) for rank in range(RANKS)]
    if spoil is not None:
        tensors[1]["c"][3, 4] = spoil

    def program(rank):
        world = World(rank, RANKS)
        yield from exchangers[rank].begin(step, world)
        out = yield from exchangers[rank].exchange(tensors[rank], step, world, into=tensors[rank])
        exchangers[rank].settle()
        return out

    return lockstep([program(rank) for rank in range(RANKS)])


def start(text):
    return [Exchanger(SPECS, parse(text)) for _ in range(RANKS)]


def leaves(exchanger):
    """The stored states in a fixed order."""
    return tuple(leaf for flat in exchanger.state_dict()["layers"].values() for leaf in flat.values())


def copies(exchangers):
    return [tuple(leaf.clone() for leaf in leaves(exchanger)) for exchanger in exchangers]


@EVERY
def test_averages_are_the_mean_estimates_and_ranks_have_the_same(text):
    exchangers = start(text)
    for step in range(3):
        outs = run(exchangers, step)
        for name in SHAPES:
            states = [exchanger.states[name] for exchanger in exchangers]
            assert alike(states[0].mean_estimate, states[1].mean_estimate)
            assert all(alike(out[name], state.mean_estimate) for out, state in zip(outs, states, strict=True))
            own = sum(state.own_estimate.double() for state in states) / RANKS
            assert torch.allclose(own.float(), states[0].mean_estimate, atol=1e-5)


@EVERY
@pytest.mark.parametrize("spoil", [float("nan"), float("inf")])
def test_a_bad_step_changes_no_state_and_the_next_step_is_as_without_it(text, spoil):
    exchangers, others = start(text), start(text)
    for step in range(2):
        run(exchangers, step), run(others, step)
    before = copies(exchangers)
    assert all(bool(value.isnan().all()) for out in run(exchangers, 2, spoil) for value in out.values())
    assert all(map(alike, map(leaves, exchangers), before))
    run(exchangers, 3), run(others, 3)
    assert all(map(alike, map(leaves, exchangers), map(leaves, others)))


@EVERY
def test_a_state_dict_from_earlier_is_not_changed_by_later_steps_nor_by_writing_to_the_averages(text):
    exchangers = start(text)
    held, copied = [], []
    for step in range(4):
        for out in run(exchangers, step):
            for value in out.values():
                value.mul_(-3)  # as an optimizer that works in place
        held += map(leaves, exchangers)
        copied += copies(exchangers)
    assert all(map(alike, held, copied))
    assert not alike(held[0], held[-2])


@EVERY
def test_a_resumed_run_has_the_same_next_steps_to_the_bit(text):
    exchangers, resumed = start(text), start(text)
    for step in range(2):
        run(exchangers, step)
    for one, other in zip(exchangers, resumed, strict=True):
        other.load_state_dict(one.state_dict())
    for step in range(2, 4):
        outs, again = run(exchangers, step), run(resumed, step)
        assert all(alike(out[name], other[name]) for out, other in zip(outs, again, strict=True) for name in SHAPES)
    assert all(map(alike, map(leaves, exchangers), map(leaves, resumed)))


def damage(payload):
    """The same payload with a value that no rank sends."""
    parts = [part.clone() for part in payload.parts]
    next(part for part in parts if part.dtype == torch.float32)[0] = float("nan")
    return Payload(parts)


def test_a_step_with_a_damaged_message_commits_nothing():
    """The mean estimates are added up after all messages are there; an error in that fails the step, too."""
    (exchanger, *_), world = start("ef21(topk(density=0.01))"), World(0, RANKS)
    before = copies([exchanger])[0]
    tensors = gradients(0, 0)
    program = exchanger.exchange(tensors, 0, world, into=tensors)
    request = next(program)
    with pytest.raises(DecodeError):
        program.send(GatheredPayloads([request.payload, damage(request.payload)]))
    assert exchanger.settle() is False
    assert alike(leaves(exchanger), before)


def test_one_pass_writes_the_mean_estimates_and_the_averages(monkeypatch):
    calls = []

    def record(bases, payloads, counts, outs=None):
        calls.append(outs is not None)
        return add(bases, payloads, counts, outs)

    add = gather_mean.add_sparse_many
    monkeypatch.setattr(gather_mean, "add_sparse_many", record)
    run(start("ef21(topk(density=0.01))"), 0)
    assert calls == [True] * RANKS
