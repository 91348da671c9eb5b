"""ModuleObjective restores the module bit for bit."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from thinwire import Exchanger, ImportanceSolver, ModuleObjective, TensorSpec, loopback, parse


class Block(nn.Module):
    """Convolution, batch norm and dropout beside a shortcut, and a head: small, with all that makes trouble."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.shortcut = nn.Conv2d(3, 4, 1)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 5)
        self.unused = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("nothing", None)

    def forward(self, x):
        self.calls = self.calls + 1  # replaced, not changed
        x = self.drop(torch.relu(self.bn(self.conv(x)) + self.shortcut(x)))
        return self.head(x.mean((2, 3))) * self.frozen.mean()


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Block()
    model.bn.eval()  # a flag of its own
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.randn_like(p)
    return model


IMAGES, LABELS = torch.randn(6, 3, 5, 5, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 5


def closure(model):
    random.random()
    np.random.rand()
    model.train()
    return nn.functional.cross_entropy(model(IMAGES), LABELS)


def picture(model):
    """All that can be seen of a model and of random states, as comparable values."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return (
        {name: (id(t), t.data_ptr(), t.detach().numpy().tobytes()) for name, t in tensors.items()},
        {name: (id(p.grad), p.grad.numpy().tobytes()) for name, p in model.named_parameters() if p.grad is not None},
        {name: module.training for name, module in model.named_modules()},
        torch.get_rng_state().numpy().tobytes(), random.getstate(), np.random.get_state()[1].tobytes(), np.random.get_state()[2],
    )  # fmt: skip


def test_model_and_random_states_are_restored(model):
    before = picture(model)
    objective = ModuleObjective(model, closure)
    moved = {name: p + 0.1 for name, p in objective.point().items()}
    objective.value(moved)
    objective.value_and_gradient(moved)
    assert picture(model) == before


def test_a_closure_that_fails_or_calls_backward_changes_nothing(model):
    before = picture(model)

    def failing(model):
        closure(model).backward()
        raise RuntimeError("out of memory")

    objective = ModuleObjective(model, failing)
    for ask in (objective.value_and_gradient, objective.value):
        with pytest.raises(RuntimeError):
            ask({name: p + 0.1 for name, p in objective.point().items()})
    assert picture(model) == before


def test_every_trial_has_the_same_noise(model):
    objective = ModuleObjective(model, closure)
    point = objective.point()
    once, gradient = objective.value_and_gradient(point)
    assert once == objective.value(point) == objective.value_and_gradient(point)[0]
    assert all(torch.equal(gradient[n], objective.value_and_gradient(point)[1][n]) for n in gradient)
    torch.rand(1)  # the training goes on, and so does its noise
    assert objective.value(point) != once


def test_the_gradient_is_that_of_a_model_with_those_parameters(model):
    objective = ModuleObjective(model, closure)
    moved = {name: p + 0.1 for name, p in objective.point().items()}
    model.drop.p = 0.0
    loss, gradient = objective.value_and_gradient(moved)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in twin.named_parameters():
            p.grad = None
            p.copy_(moved.get(name, p))
    expected = closure(twin)
    expected.backward()
    assert loss == float(expected.detach())
    for name, p in twin.named_parameters():
        if name == "unused":
            assert not gradient[name].any()
        elif p.requires_grad:
            torch.testing.assert_close(gradient[name], p.grad)
    assert "frozen" not in gradient


def test_recurrent_and_tied_weights_are_moved_everywhere():
    torch.manual_seed(0)
    lstm, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    still = ModuleObjective(lstm, lambda m: m(x)[0].square().sum())
    assert still.value({n: torch.zeros_like(p) for n, p in still.point().items()}) == 0

    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    objective = ModuleObjective(tied, lambda m: m(torch.ones(3)).sum())
    assert list(objective.point()) == ["0.weight"]
    assert objective.value({"0.weight": torch.eye(3) * 2}) == 12


def test_unknown_names_are_refused(model):
    with pytest.raises(KeyError, match="no parameters \\['other'\\]"):
        ModuleObjective(model, closure).value({"other": torch.ones(1)})


def test_solving_for_a_model_does_not_change_it(model):
    objective = ModuleObjective(model, closure)
    point = objective.point()
    _, gradient = objective.value_and_gradient(point)
    before = picture(model)
    for constraint, eta in (("box", 10.0), ("scaled_simplex", 1e8), ("simplex", 100.0)):
        solver = ImportanceSolver(constraint, steps=4, eta=eta, skip=("bn.*", "*.bias"))
        found = loopback(solver.solve(objective, point, gradient, 0.1))
        assert found.importance.keys() == {"conv.weight", "shortcut.weight", "head.weight", "unused"}
        assert min(found.losses) <= found.losses[0]
        specs = [TensorSpec.of(name, p) for name, p in point.items()]
        Exchanger(specs, parse("ef(impk(density=0.1))")).importance.update(found.importance)  # of the right shapes
    assert picture(model) == before
