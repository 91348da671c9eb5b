"""States of `local` and `moments.average`, and the learning rate that a round takes along; a world of one."""

import copy
import warnings
from concurrent.futures import Future

import pytest
import torch

import thinwire
from thinwire import CheckpointError, ConfigMismatch

EF = "ef(topk(density=0.1))"


def made(**options):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, thinwire.local(model, optimizer, **{"sync_every": 2, "dense_below": 0, **options})


def teach(model, optimizer, steps):
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(6, 12, generator=generator)
        torch.nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()


def saved(**options):
    model, optimizer, handle = made(**options)
    teach(model, optimizer, 4)
    return copy.deepcopy(handle.state_dict())


class Later(Future):
    """What a busy communication thread does: it runs a program when its result is waited for."""

    def __init__(self, run):
        super().__init__()
        self._later = run

    def result(self, timeout=None):
        return self._later()


@pytest.mark.parametrize(
    "options",
    ({"overlap": True}, {"sync_every": 3, "fragment_sync_delay": 1}, {"sync_every": 4, "fragment_sync_delay": 3}, {}),
)
def test_a_round_knows_the_learning_rate_of_the_step_in_which_it_began(options):
    exchange = "ef(adapt(topk(density=0.1), controller=accordion(every=1)))"
    seen = {}
    for slow in (False, True):
        model, optimizer, handle = made(composition=exchange, **options)
        if slow:
            run = handle.driver.run
            handle.driver.submit = lambda program, run=run: Later(lambda: run(program))
        exchanger, rates = handle.rounds.exchanger, []
        exchanger.set_layer_callback(
            lambda spec, _, e=exchanger, r=rates: r.append(e.lr) if spec.name == "0.weight" else None
        )
        for step in range(12):
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            teach(model, optimizer, 1)
        handle._wait()
        seen[slow] = rates, exchanger.plans
        every, first = options.get("sync_every", 2), 0 if "overlap" in options else options.get("sync_every", 2) - 1
        assert rates == [0.1 / (step + 1) for step in range(first, 12, every)]
    assert seen[True] == seen[False]


def test_a_state_of_another_exchange_is_refused_and_taken_over_where_that_is_wished():
    stored = saved(composition="dgc(topk(density=0.1))", outer_optimizer="nesterov()")
    _, _, handle = made(composition=EF, outer_optimizer="nesterov()")
    with pytest.raises(ConfigMismatch, match=r"was dgc\(topk.*here it is ef\(topk.*strict=False"):
        handle.load_state_dict(stored)
    (dropped,) = handle.load_state_dict(stored, strict=False)
    assert "DGC's velocity of 0.weight, 2.weight" in dropped
    layers = stored["rank0"]["exchanger"]["layers"]
    assert torch.equal(handle.rounds.exchanger.states["0.weight"].residual, layers["0.weight"]["residual"])
    assert handle.step == 4 and torch.equal(handle.rounds.anchor["0.weight"], stored["rank0"]["anchor"]["0.weight"])


def test_a_state_with_averaged_moments_and_one_without_are_told_apart():
    with_them, without = saved(composition=EF, optimizer_state="ef21(topk(density=0.5))"), saved(composition=EF)
    _, _, plain = made(composition=EF)
    with pytest.raises(ConfigMismatch, match="moments was ef21"):
        plain.load_state_dict(with_them)
    assert plain.load_state_dict(with_them, strict=False) == [
        "the stored memory of the moments is dropped: this handle has none"
    ]
    _, _, averaging = made(composition=EF, optimizer_state="ef21(topk(density=0.5))")
    with pytest.raises(ConfigMismatch, match="moments was None, here it is ef21"):
        averaging.load_state_dict(without)
    del without["composition"]
    with pytest.raises(CheckpointError, match="lacks exchanger, rounds, which an averaging of moments needs"):
        averaging.load_state_dict(without)
    assert averaging.load_state_dict(without, strict=False) == [
        "the stored state has no memory of the moments: it stays as it is"
    ]
    assert averaging.averaging.rounds == 0


@pytest.mark.parametrize("key", ("step", "anchor", "exchanger", "steps_since_sync"))
def test_what_a_stored_state_lacks_is_named(key):
    stored = saved(composition=EF)
    del stored["rank0"][key]
    _, _, handle = made(composition=EF)
    with pytest.raises(CheckpointError, match=f"lacks {key}"):
        handle.load_state_dict(stored)


def test_another_number_of_fragments_is_named():
    with pytest.raises(CheckpointError, match="stored state has num_fragments=1, got 2"):
        made(num_fragments=2)[2].load_state_dict(saved())


def test_moments_of_another_composition_are_compared_too():
    model, optimizer, handle = made()
    handle.close()
    teach(model, optimizer, 2)
    handle = thinwire.moments.average(optimizer, "ef21(topk(density=0.5))", dense_below=0)
    stored = copy.deepcopy(handle.state_dict())
    assert stored["moments"] == {"moments": "ef21(topk(density=0.5))"}
    other = thinwire.moments.average(optimizer, "ef21(topk(density=0.3))", dense_below=0, now=False)
    with pytest.raises(
        ConfigMismatch, match=r"was ef21\(topk\(density=0.5\)\), here it is ef21\(topk\(density=0.3\)\)"
    ):
        other.load_state_dict(stored)
    assert other.load_state_dict(stored, strict=False) == []
    names = list(stored["rank0"]["exchanger"]["layers"])
    ours = other.state_dict()["rank0"]
    for name in names:
        for leaf, tensor in stored["rank0"]["exchanger"]["layers"][name].items():
            assert torch.equal(ours["exchanger"]["layers"][name][leaf], tensor)
    assert ours["rounds"] == 1
    with pytest.raises(CheckpointError, match="not the state of a handle"):
        other.load_state_dict({})


def told(model, optimizer, steps=2):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        teach(model, optimizer, steps)
    return [str(w.message) for w in found if "memory" in str(w.message)]


def test_resuming_without_the_handles_state_is_told_once():
    model, optimizer, handle = made(composition=EF)
    assert told(model, optimizer) == []
    stored = copy.deepcopy((optimizer.state_dict(), handle.state_dict()))
    model, optimizer, handle = made(composition=EF)
    optimizer.load_state_dict(stored[0])
    (text,) = told(model, optimizer)
    assert text.startswith("local: the optimizer has made steps before") and "load_state_dict()" in text
    model, optimizer, handle = made(composition=EF)
    optimizer.load_state_dict(stored[0])
    handle.load_state_dict(stored[1])
    assert told(model, optimizer) == []


def test_an_optimizer_without_a_learning_rate_trains():
    class Shrinks(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter *= 0.9

    model = torch.nn.Linear(3, 2)
    optimizer = Shrinks(model.parameters())
    with thinwire.local(model, optimizer, sync_every=1) as handle:
        optimizer.step()
        assert handle.step == 1 and handle.rounds.exchanger.lr is None
