import logging

import pytest
import torch

from helpers.cases import draw
from thinwire import (
    CheckpointError,
    Exchanger,
    IncompatibleParts,
    ProtocolError,
    TensorSpec,
    World,
    lockstep,
    loopback,
    parse,
)
from thinwire.controllers import Fixed

W = TensorSpec("w", (6,))
ALONE = World(0, 1)


class Alternate:
    """A controller that changes its mind at every step."""

    def init(self, layers):
        return {spec.name: 0 for spec in layers}, ()

    def observe(self, spec, observation, state, ctx):
        return state

    def replan(self, plan, state, ctx):
        return dict.fromkeys(plan, ctx.step % 2), state
        yield


def test_residual_survives_a_change_of_plan():
    exchanger = Exchanger([W], parse("ef(switch(topk(k=1), dense()))"), Alternate())
    loopback(exchanger.run_step({"w": torch.ones(6)}, 0, ALONE))
    assert exchanger.states["w"].residual.sum() == 5
    out = loopback(exchanger.run_step({"w": torch.ones(6)}, 1, ALONE))
    assert out["w"].sum() == 11  # dense sends what Top-k had kept back
    assert exchanger.states["w"].residual.sum() == 0


def test_memory_is_pending_until_settled():
    exchanger = Exchanger([W], parse("ef(topk(k=1))"))
    loopback(exchanger.exchange({"w": torch.ones(6)}, 0, ALONE))
    assert exchanger.states["w"].residual.sum() == 0
    assert exchanger.settle()
    assert exchanger.states["w"].residual.sum() == 5


def test_a_bad_bucket_spoils_the_whole_step():
    layers = [W, TensorSpec("v", (4,))]
    exchanger = Exchanger(layers, parse("ef(topk(k=1))"))
    loopback(exchanger.begin(0, ALONE))
    loopback(exchanger.exchange({"w": torch.ones(6)}, 0, ALONE))
    values = loopback(exchanger.exchange({"v": torch.full((4,), float("nan"))}, 0, ALONE))
    assert values["v"].isnan().all()
    assert not exchanger.settle()
    assert exchanger.states["w"].residual.sum() == 0
    assert exchanger.skipped_steps == 1


def test_the_rank_at_fault_says_so(caplog):
    with caplog.at_level(logging.WARNING, "thinwire"):
        loopback(Exchanger([W], parse("dense()")).run_step({"w": torch.full((6,), float("inf"))}, 9, ALONE))
    assert "step 9: rank 0 has NaN or Inf in w" in caplog.text


def test_one_small_layer_and_one_of_another_type_travel_in_one_message_with_one_request_per_type():
    layers = [W, TensorSpec("v", (4,)), TensorSpec("h", (4,), torch.bfloat16)]
    exchanger = Exchanger(layers, parse("dense()"))
    program = exchanger.run_step({s.name: draw("gaussian", s.shape, s.dtype) for s in layers}, 3, ALONE)
    group = program.send(None)
    first, second = group.members()
    assert {str(first.tensor.dtype), str(second.tensor.dtype)} == {"torch.float32", "torch.bfloat16"}
    assert group.step == first.step == second.step == 3


def test_exchange_does_nothing_before_it_is_driven():
    exchanger = Exchanger([W], parse("dense()"))
    program = exchanger.exchange({"unknown": torch.ones(1)}, 0, ALONE)  # not even checked
    assert exchanger.settle() and exchanger.skipped_steps == 0
    with pytest.raises(KeyError, match="unknown"):
        loopback(program)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x": torch.ones(6)}, "unknown layer 'x'"),
        ({"w": torch.ones(5)}, r"layer w must be \(6,\)"),
        ({"w": torch.ones(6).double()}, "float64"),
    ],
)
def test_wrong_tensors_are_named(tensors, message):
    with pytest.raises((KeyError, ValueError), match=message):
        loopback(Exchanger([W], parse("dense()")).exchange(tensors, 0, ALONE))


def test_a_layer_is_exchanged_once_a_step():
    exchanger = Exchanger([W], parse("dense()"))
    loopback(exchanger.exchange({"w": torch.ones(6)}, 4, ALONE))
    with pytest.raises(ProtocolError, match="step 4: layer w was already exchanged"):
        loopback(exchanger.exchange({"w": torch.ones(6)}, 4, ALONE))


def test_wrong_set_ups_are_refused():
    with pytest.raises(ValueError, match="names must differ"):
        Exchanger([W, W], parse("dense()"))
    with pytest.raises(ValueError, match="each layer needs one aggregator"):
        Exchanger([W], {"v": parse("dense()")})
    with pytest.raises(ValueError, match="plan names no layer of the model: q"):
        Exchanger([W], parse("dense()"), Fixed(plan={"q": 1}))


def test_stored_memory_of_another_model_is_refused():
    exchanger = Exchanger([W], parse("ef(dense())"))
    state = exchanger.state_dict()
    with pytest.raises(CheckpointError, match="differ from this model's in other, w"):
        Exchanger([TensorSpec("other", (6,))], parse("ef(dense())")).load_state_dict(state)
    with pytest.raises(CheckpointError, match="w: the stored state 'residual'"):
        Exchanger([TensorSpec("w", (7,))], parse("ef(dense())")).load_state_dict(state)
    with pytest.raises(CheckpointError, match="float64"):
        Exchanger([TensorSpec("w", (6,), torch.float64)], parse("ef(dense())")).load_state_dict(state)
    with pytest.raises(CheckpointError, match="w: the stored state lacks 'velocity'; it has"):
        Exchanger([W], parse("dgc(dense())")).load_state_dict(state)
    with pytest.raises(CheckpointError, match="controller: the stored state lacks 'num_exchanges'"):
        Exchanger([W], parse("ef(adapt(topk(density=0.1), controller=lgreco()))")).load_state_dict(state)
    with pytest.raises(CheckpointError, match="stored state lacks plan, plans, controller"):
        exchanger.load_state_dict({"layers": {}})


def test_layers_may_have_aggregators_of_their_own():
    layers = [W, TensorSpec("v", (4,))]
    exchangers = [Exchanger(layers, {"w": parse("ef(topk(k=1))"), "v": parse("dense()")}) for _ in range(2)]
    tensors = {"w": torch.arange(6.0), "v": torch.ones(4)}
    outs = lockstep([e.run_step(tensors, 0, World(r, 2)) for r, e in enumerate(exchangers)])
    assert outs[0]["w"].tolist() == [0, 0, 0, 0, 0, 5]
    assert outs[1]["v"].tolist() == [1, 1, 1, 1]


def sent_by(exchanger, step=0, tensor=None):
    tensor = torch.ones(6) if tensor is None else tensor
    return loopback(exchanger.run_step({"w": tensor}, step, ALONE))["w"]


def test_importance_is_given_to_the_parts_of_its_layer_and_to_no_other():
    exchanger = Exchanger([W, TensorSpec("v", (6,))], parse('ef(switch(impk(k=2, weights="plain"), dense()))'))
    exchanger.importance["w"] = torch.tensor([1.0, 1, 1, 1, 5, 3])
    out = loopback(exchanger.run_step({"w": torch.ones(6), "v": torch.ones(6)}, 0, ALONE))
    assert out["w"].tolist() == [0, 0, 0, 0, 5, 3]
    assert out["v"].tolist() == [1, 1, 0, 0, 0, 0]  # without w it is Top-k


def test_importance_is_copied_and_can_be_taken_away():
    exchanger, w = Exchanger([W], parse('impk(k=1, weights="plain")')), torch.tensor([1.0, 2, 1, 1, 1, 1])
    exchanger.importance["w"] = w
    w[5] = 9
    assert sent_by(exchanger).tolist() == [0, 2, 0, 0, 0, 0]
    exchanger.importance.clear()
    assert sent_by(exchanger, 1).tolist() == [1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "w", "words"),
    [
        ("v", torch.ones(6), "there is no layer 'v'; the layers are \\['w'\\]"),
        ("w", torch.ones(7), r"must be \(6,\) or \(6,\), got \(7,\)"),
        ("w", torch.ones(2, 3), r"got \(2, 3\)"),
        ("w", torch.full((6,), float("nan")), "must be finite and >= 0"),
        ("w", torch.full((6,), float("inf")), "must be finite and >= 0"),
        ("w", torch.tensor([1.0, 1, -1, 1, 1, 1]), "must be finite and >= 0, got a least one of -1.0"),
    ],
)
def test_wrong_importance_is_named_and_changes_nothing(name, w, words):
    exchanger = Exchanger([W], parse("impk(k=1)"))
    exchanger.importance["w"] = torch.arange(6.0)
    with pytest.raises((KeyError, ValueError), match=words):
        exchanger.importance[name] = w
    with pytest.raises((KeyError, ValueError), match=words):
        exchanger.importance.replace_all({"w": torch.ones(6), name: w})
    assert exchanger.importance["w"].tolist() == list(range(6))


def test_importance_that_nothing_would_use_is_refused():
    with pytest.raises(IncompatibleParts, match="no part of this composition takes an importance; use impk"):
        Exchanger([W], parse("ef(topk(k=1))")).importance["w"] = torch.ones(6)


def test_importance_may_be_flat_and_is_kept_in_the_layers_shape_and_type():
    layers = [TensorSpec("m", (2, 3), torch.bfloat16), TensorSpec("d", (2, 3), torch.float64)]
    exchanger = Exchanger(layers, parse("impk(k=1)"))
    exchanger.importance.update({"m": torch.arange(6), "d": torch.arange(6)})
    assert exchanger.importance["m"].shape == (2, 3) and exchanger.importance["m"].dtype == torch.float32
    assert exchanger.importance["d"].dtype == torch.float64


@pytest.mark.parametrize(
    "text", ['ef(impk(k=2, weights="plain"))', "scam(importance_topk(k=2))", "ef(importance_sampling(k=2))"]
)
def test_a_run_with_importance_resumes_bit_for_bit(text):
    def run(exchanger, steps):
        return [sent_by(exchanger, step, draw("gaussian", (6,), seed=step)) for step in steps]

    straight, first, second = (Exchanger([W], parse(text), seed=2) for _ in range(3))
    for exchanger in (straight, first):
        exchanger.importance["w"] = draw("gaussian", (6,), seed=99).abs()
    expected = run(straight, range(10))
    run(first, range(5))
    second.load_state_dict(first.state_dict())
    assert torch.equal(torch.stack(run(second, range(5, 10))), torch.stack(expected[5:]))
    bare = Exchanger([W], parse(text), seed=2)
    bare.load_state_dict(first.state_dict() | {"importance": {}})
    assert not torch.equal(torch.stack(run(bare, range(5, 10))), torch.stack(expected[5:]))  # so w does matter here


def test_targets_are_what_a_memory_wishes_to_send():
    for text, residual in (("ef(topk(k=1))", 1.0), ('scam(topk(k=1), residual_dtype="int8")', 1.0), ("topk(k=1)", 0.0)):
        exchanger = Exchanger([W], parse(text))
        sent_by(exchanger)
        torch.testing.assert_close(exchanger.targets({"w": torch.ones(6)})["w"][1:], torch.full((5,), 1 + residual))
