import logging

import pytest
import torch

from drawn import draw
from thinwire import Exchanger, ProtocolError, TensorSpec, World, lockstep, loopback, parse
from thinwire.controllers import Fixed

W = TensorSpec("w", (6,))
ALONE = World(0, 1)


class Alternate:
    """A controller that changes its mind at every step."""

    def init(self, layers):
        return {spec.name: 0 for spec in layers}, ()

    def observe(self, spec, seen, state, ctx):
        return state

    def replan(self, plan, state, ctx):
        return dict.fromkeys(plan, ctx.step % 2), state
        yield


def test_residual_survives_a_change_of_plan():
    exchanger = Exchanger([W], parse("ef(switch(topk(k=1), dense()))"), Alternate())
    loopback(exchanger.round({"w": torch.ones(6)}, 0, ALONE))
    assert exchanger.memory["w"].residual.sum() == 5
    out = loopback(exchanger.round({"w": torch.ones(6)}, 1, ALONE))
    assert out["w"].sum() == 11  # dense sends what Top-k had kept back
    assert exchanger.memory["w"].residual.sum() == 0


def test_memory_is_pending_until_settled():
    exchanger = Exchanger([W], parse("ef(topk(k=1))"))
    loopback(exchanger.exchange({"w": torch.ones(6)}, 0, ALONE))
    assert exchanger.memory["w"].residual.sum() == 0
    assert exchanger.settle()
    assert exchanger.memory["w"].residual.sum() == 5


def test_a_bad_bucket_spoils_the_whole_step():
    layers = [W, TensorSpec("v", (4,))]
    exchanger = Exchanger(layers, parse("ef(topk(k=1))"))
    loopback(exchanger.begin(0, ALONE))
    loopback(exchanger.exchange({"w": torch.ones(6)}, 0, ALONE))
    values = loopback(exchanger.exchange({"v": torch.full((4,), float("nan"))}, 0, ALONE))
    assert values["v"].isnan().all()
    assert not exchanger.settle()
    assert exchanger.memory["w"].residual.sum() == 0
    assert exchanger.skipped_steps == 1


def test_the_rank_at_fault_says_so(caplog):
    with caplog.at_level(logging.WARNING, "thinwire"):
        loopback(Exchanger([W], parse("dense()")).round({"w": torch.full((6,), float("inf"))}, 9, ALONE))
    assert "step 9: rank 0 has NaN or Inf in w" in caplog.text


def test_one_small_layer_and_one_of_another_type_travel_in_one_request_per_type():
    layers = [W, TensorSpec("v", (4,)), TensorSpec("h", (4,), torch.bfloat16)]
    exchanger = Exchanger(layers, parse("dense()"))
    program = exchanger.round({s.name: draw("gaussian", s.shape, s.dtype) for s in layers}, 3, ALONE)
    first = program.send(None)
    second = program.send(first.tensor)
    assert {str(first.tensor.dtype), str(second.tensor.dtype)} == {"torch.float32", "torch.bfloat16"}
    assert first.step == second.step == 3


def test_exchange_does_nothing_before_it_is_driven():
    exchanger = Exchanger([W], parse("dense()"))
    program = exchanger.exchange({"unknown": torch.ones(1)}, 0, ALONE)  # not even checked
    assert exchanger.settle() and exchanger.skipped_steps == 0
    with pytest.raises(KeyError, match="unknown"):
        loopback(program)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x": torch.ones(6)}, "no layer is called 'x'"),
        ({"w": torch.ones(5)}, r"layer w is \(6,\)"),
        ({"w": torch.ones(6).double()}, "float64"),
    ],
)
def test_wrong_tensors_are_named(tensors, message):
    with pytest.raises((KeyError, ValueError), match=message):
        loopback(Exchanger([W], parse("dense()")).exchange(tensors, 0, ALONE))


def test_a_layer_is_exchanged_once_a_step():
    exchanger = Exchanger([W], parse("dense()"))
    loopback(exchanger.exchange({"w": torch.ones(6)}, 4, ALONE))
    with pytest.raises(ProtocolError, match="step 4: layer w was exchanged already"):
        loopback(exchanger.exchange({"w": torch.ones(6)}, 4, ALONE))


def test_wrong_set_ups_are_refused():
    with pytest.raises(ValueError, match="names must differ"):
        Exchanger([W, W], parse("dense()"))
    with pytest.raises(ValueError, match="one aggregator per layer"):
        Exchanger([W], {"v": parse("dense()")})
    with pytest.raises(ValueError, match="no layer is called q"):
        Exchanger([W], parse("dense()"), Fixed(entries={"q": 1}))


def test_stored_memory_of_another_model_is_refused():
    exchanger = Exchanger([W], parse("ef(dense())"))
    state = exchanger.state_dict()
    with pytest.raises(KeyError, match="differ"):
        Exchanger([TensorSpec("other", (6,))], parse("ef(dense())")).load_state_dict(state)
    with pytest.raises(ValueError, match="residual"):
        Exchanger([TensorSpec("w", (7,))], parse("ef(dense())")).load_state_dict(state)
    with pytest.raises(ValueError, match="float64"):
        Exchanger([TensorSpec("w", (6,), torch.float64)], parse("ef(dense())")).load_state_dict(state)


def test_layers_may_have_aggregators_of_their_own():
    layers = [W, TensorSpec("v", (4,))]
    exchangers = [Exchanger(layers, {"w": parse("ef(topk(k=1))"), "v": parse("dense()")}) for _ in range(2)]
    tensors = {"w": torch.arange(6.0), "v": torch.ones(4)}
    outs = lockstep([e.round(tensors, 0, World(r, 2)) for r, e in enumerate(exchangers)])
    assert outs[0]["w"].tolist() == [0, 0, 0, 0, 0, 5]
    assert outs[1]["v"].tolist() == [1, 1, 1, 1]
