"""What `attach` and `local` take: every option is checked before anything is opened or registered."""

import threading

import pytest
import torch
from torch import nn

import thinwire
from helpers import local_jobs
from helpers import options_jobs as jobs
from thinwire import CompositionError, IncompatibleParts, TensorSpec
from thinwire.catalog.patterns import assign_composition
from thinwire.compressors import TopK
from thinwire.integrations.ddp_options import DDPOptions

BOTH = [
    ("timeout_s", 0, "from 0.001 to 1e+09"),
    ("timeout_s", -1, "from 0.001 to 1e+09"),
    ("timeout_s", "60", "got '60'"),
    ("timeout_s", float("nan"), "got nan"),
    ("timeout_s", float("inf"), "got inf"),
    ("timeout_s", True, "got True"),
    ("dense_below", 1.5, "whole number, at least 0, got 1.5"),
    ("dense_below", -1, "0 compresses all matrices"),
    ("check_weights_every", True, "whole number, at least 0, got True"),
    ("check_weights_every", -1, "0 disables the comparison"),
    ("seed", 1.0, "a whole number, got 1.0"),
    ("seed", "1", "a whole number, got '1'"),
    ("on_divergence", "resnyc", "one of stop, resync, got 'resnyc' (did you mean 'resync'?)"),
    ("on_divergence", None, "one of stop, resync, got None"),
]
ATTACH = [
    ("max_bad_steps", -1, "at least 0, got -1; 0 disables the limit"),
    ("max_bad_steps", -3, "at least 0, got -3"),
    ("warmup_steps", 1.5, "at least 0, got 1.5"),
    ("scaler", True, "must be a torch.amp.GradScaler or None, got True"),
    ("scaler", torch.amp.GradScaler, "must be a torch.amp.GradScaler"),
]
LOCAL = [
    ("max_bad_rounds", -1, "at least 0, got -1"),
    ("hooks", 1, "True or False, got 1"),
    ("overlap", "yes", "True or False, got 'yes'"),
    ("num_fragments", 1.5, "at least 1, got 1.5"),
    ("fragment_sync_delay", -1, "at least 0, got -1"),
    ("fragment_update_alpha", float("nan"), "finite number, got nan"),
    ("sync_every", 1.5, "at least 1, got 1.5; or a policy"),
    ("sync_every", None, "at least 1, got None"),
    ("sync_every", True, "at least 1, got True"),
    ("outer_optimizer", None, "outer optimizer, got None"),
    ("payload", "delta", "got 'delta' (did you mean 'deltas'?)"),
    ("buffers", "averages", "(did you mean 'average'?)"),
    ("optimizer_state", None, "optimizer_state must be local, reset or a composition"),
    ("group", "gloo", "group must be a process group"),
]


@pytest.mark.parametrize(("option", "value", "told"), [*BOTH, *ATTACH], ids=str)
def test_attach_refuses_an_option_by_name_and_value(option, value, told):
    with pytest.raises(CompositionError) as caught:
        DDPOptions(**{option: value})
    assert str(caught.value).startswith(f"attach: {option} must be ") and told in str(caught.value)


@pytest.mark.parametrize(("option", "value", "told"), [*BOTH, *LOCAL], ids=str)
def test_local_refuses_an_option_by_name_and_value(option, value, told):
    model, optimizer = local_jobs.make()
    before = threading.active_count()
    with pytest.raises(CompositionError) as caught:
        thinwire.local(model, optimizer, **{option: value})
    assert str(caught.value).startswith(f"local: {option} ") and told in str(caught.value)
    assert threading.active_count() == before and not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("option, value", [("timeout_s", 0), ("dense_below", -1), ("seed", None), ("now", "yes")])
def test_moments_refuse_an_option_by_name_and_value(option, value):
    optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters())
    with pytest.raises(CompositionError, match=f"moments: {option} must be .* got {value!r}"):
        thinwire.moments.average(optimizer, **{option: value})


WRONG = [
    (None, "{name}=None is no part; expected an aggregator"),
    ({}, "{name} is an empty mapping"),
    (TopK, "is a class; expected an object, TopK(...)"),
    ({"*": None}, "{name}=None is no part"),
    ({3: "dense()"}, "a name pattern must be a text such as '*.weight', got 3"),
    ({"*": "dense()", "first.*": "ef(sign())"}, "pattern 'first.*' is never reached: '*' "),
    ({"fist.*": "ef(sign())"}, "no parameter name matches 'fist.*'"),
    ("ring()", "is a topology; expected an aggregator"),
]


@pytest.mark.parametrize(("wanted", "told"), WRONG, ids=str)
@pytest.mark.parametrize(("caller", "name"), [("attach", "composition"), ("local", "composition")])
def test_a_wrong_composition_is_told_by_who_was_asked(wanted, told, caller, name):
    layers = [TensorSpec("first.weight", (4, 4)), TensorSpec("last.weight", (4, 4))]
    with pytest.raises(CompositionError) as caught:
        assign_composition(layers, wanted, 0, caller, name)
    assert told.format(name=name) in str(caught.value)
    assert wanted == "ring()" or str(caught.value).startswith(f"{caller}: ")


def test_local_never_says_attach():
    model, optimizer = local_jobs.make()
    for wrong in ({"*nothing*": "dense()"}, {}, None, {"*": "dense()", "first.*": "sign()"}):
        with pytest.raises(CompositionError) as caught:
            thinwire.local(model, optimizer, composition=wrong)
        assert "attach" not in str(caught.value) and str(caught.value).startswith("local: ")


def test_a_full_name_is_reached_wherever_it_stands():
    layers = [TensorSpec("first.weight", (4, 4)), TensorSpec("last.weight", (4, 4))]
    rules = assign_composition(layers, {"*": "dense()", "last.weight": "topk(k=1)"}, 0)
    assert [type(rule).__name__ for rule in rules.values()] == ["Dense", "GatherMean"]
    with pytest.raises(CompositionError, match=r"'\*.weight' is never reached"):
        assign_composition(layers, {"first*": "sign()", "*.weight": "dense()", "last.weight": "topk(k=1)"}, 0)


def test_a_refused_attach_leaves_nothing_behind(pool):
    cases = [{"composition": "ef(tpok(k=1))"}, {"max_bad_steps": -3}, {"timeout_s": 0}, {"composition": None},
             {"composition": {"*": "dense()", "last*": "sign()"}}]  # fmt: skip
    told = ["did you mean 'topk'?", "max_bad_steps", "timeout_s", "composition=None", "never reached"]
    for found, threads, hooks in pool.run(2, jobs.refused, cases):
        assert [kind for kind, _ in found] == ["CompositionError"] * 5
        assert all(words in text for words, (_, text) in zip(told, found, strict=True))
        assert (threads, hooks) == (0, 0)


def test_ranks_that_differ_leave_no_threads_and_no_hook(pool):
    assert pool.run(2, jobs.quarrel_and_count) == [({"ConfigMismatch"}, 0, 0)] * 2


def test_a_rank_that_is_refused_alone_is_found_by_the_others(pool):
    (kind, text), (other, why) = pool.run(2, jobs.alone_refused)
    assert other == "CompositionError" and "did you mean 'topk'?" in why
    assert kind == "PeerLostError" and "if attach failed on another rank, the log of that rank has the reason" in text
    pool.close()  # these ranks have not opened equally many connections


def test_local_takes_an_optimizer_without_a_learning_rate():
    class Halving(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data.mul_(0.5)

    model = nn.Linear(4, 4)
    optimizer = Halving(model.parameters())
    with thinwire.local(model, optimizer, sync_every=2) as handle:
        for _ in range(4):
            optimizer.step()
        assert handle.rounds.num_rounds == 2 and handle.rounds.exchanger.lr is None


def test_local_refuses_closures_where_it_averages_gradients():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = thinwire.local(model, optimizer, sync_every=1, payload="gradients")
    with pytest.raises(IncompatibleParts, match=r"step\(closure\) computes them inside"):
        optimizer.step(lambda: model(torch.ones(4)).sum())
    handle.close()


def test_local_takes_a_bare_compressor_and_parts_of_ones_own():
    for exchange in (TopK(density=0.1), {"first*": TopK(density=0.1)}, jobs.OwnTopK(density=0.1)):
        model, optimizer = local_jobs.make()
        with pytest.warns(UserWarning, match="local: .* is biased and has no memory"):
            handle = thinwire.local(model, optimizer, sync_every=2, composition=exchange)
        with handle:
            local_jobs.teach(model, optimizer, 0, 4)
            assert handle.rounds.num_rounds == 2


def test_moments_take_a_bare_compressor_and_refuse_ef21_around_an_expansion():
    optimizer = torch.optim.Adam(nn.Linear(64, 64).parameters())
    with thinwire.moments.average(optimizer, TopK(density=0.1)) as handle:
        assert handle.averaging.rounds == 1
    with pytest.raises(IncompatibleParts, match=r"moments: .* EF21 needs a contraction"):
        thinwire.moments.average(optimizer, "ef21(ternary())")
    with pytest.raises(CompositionError, match="moments: composition=None is no part"):
        thinwire.moments.average(optimizer, None)
