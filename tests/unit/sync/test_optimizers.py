"""OuterOptimizer optimizers: the bits of before, any class of torch.optim, and states that are stored and read back."""

import pytest
import torch

from helpers.local_training import SHAPES, start, trained, workers
from thinwire import CheckpointError, CompositionError, World, lockstep
from thinwire.checkpoint.tree import decode, encode
from thinwire.core import flatten_state
from thinwire.drivers.in_process import InProcess
from thinwire.serving.loops import Handler, run_worker
from thinwire.sync import (
    Local,
    LocalRounds,
    OuterOptimizer,
    from_torch,
    parse_outer_optimizer,
    parse_sync,
    resolve_outer_optimizer,
    sync_text,
)
from thinwire.sync.federated import FederatedServer
from thinwire.sync.optimizers import restore_optimizer_state, store_momentum
from thinwire.sync.sampling import FederatedConfig
from thinwire.sync.server import GradientServer
from thinwire.sync.torch_optimizers import torch_optimizers
from thinwire.sync.worker import GradientWorker

GRADIENTS = ([0.3, -1.7, 0.01], [-0.25, 0.9, 2.3], [1.1, 0.07, -0.6], [0.4, -0.33, 0.77])
REFUSED = {"lbfgs": "closure", "sparseadam": "dense gradients"}
TORCH = {name: cls for name, cls in torch_optimizers().items() if name not in REFUSED}

# Weights after GRADIENTS from (0.9, -0.2, 1.3), and the state, as two modules gave them before they were one.
BEFORE = {
    "average()": ("-0x1.4cccd0p-1 0x1.b851ecp-1 -0x1.2e147ap+0", {}),
    "sgd(lr=0.3)": ("0x1.bd70a0p-2 0x1.e35408p-4 0x1.1cac06p-1", {}),
    "sgd(momentum=0.5)": (
        "-0x1.46666ap+0 0x1.a33334p+0 -0x1.4e8f5cp+1",
        {"steps": 4, "velocity": "0x1.d9999cp-1 -0x1.2147b0p-2 0x1.0bd70ap+0"},
    ),
    "sgd(lr=0.1, momentum=0.9, nesterov=true, weight_decay=0.01)": (
        "0x1.ea5e14p-2 0x1.d7a514p-3 0x1.03ec64p-1",
        {"steps": 4, "velocity": "0x1.6f0edcp+0 -0x1.8d24f0p-1 0x1.115f7ep+1"},
    ),
    "nesterov()": (
        "-0x1.fa1294p+0 0x1.6806d8p+1 -0x1.09afcep+2",
        {"steps": 4, "velocity": "0x1.67fcb8p+0 -0x1.8dfa44p-1 0x1.0cd64cp+1"},
    ),
    "nesterov(lr=0.4, momentum=0.0)": (
        "0x1.1eb850p-2 0x1.cac08ap-3 0x1.3b645ap-2",
        {"steps": 4, "velocity": "0x1.99999ap-2 -0x1.51eb86p-2 0x1.8a3d70p-1"},
    ),
    "adam(lr=0.01, eps=0.001, bias_correction=false)": (
        "0x1.9c4934p-1 -0x1.1b46a8p-3 0x1.37246ep+0",
        {
            "steps": 4,
            "first": "0x1.1ffd62p-3 -0x1.3e61d0p-4 0x1.ae23b0p-3",
            "second": "0x1.8eb192p-10 0x1.f288c8p-9 0x1.986cb6p-8",
        },
    ),
    "adam(lr=0.1, weight_decay=0.1)": (
        "0x1.461b7cp-1 -0x1.0394acp-5 0x1.fb0766p-1",
        {
            "steps": 4,
            "first": "0x1.1ffd62p-3 -0x1.3e61d0p-4 0x1.ae23b0p-3",
            "second": "0x1.8eb192p-10 0x1.f288c8p-9 0x1.986cb6p-8",
        },
    ),
}


def numbers(text):
    return [float.fromhex(number) for number in text.split()]


def stepped(outer, weight, gradients=GRADIENTS, state=None):
    state = outer.init(weight) if state is None else state
    for gradient in gradients:
        weight, state = outer.step(weight, torch.tensor(gradient).reshape(weight.shape), state)
    return weight, state


@pytest.mark.parametrize(("text", "before"), BEFORE.items())
def test_weights_and_states_have_the_bits_they_had_in_two_modules(text, before):
    weight, state = stepped(parse_outer_optimizer(text), torch.tensor([0.9, -0.2, 1.3]))
    assert sync_text(parse_outer_optimizer(text)) == text and weight.tolist() == numbers(before[0])
    found = {name: leaf.tolist() if torch.is_tensor(leaf) else leaf for name, leaf in flatten_state(state).items()}
    assert found == {name: leaf if leaf == 4 else numbers(leaf) for name, leaf in before[1].items()}


@pytest.mark.parametrize(("text", "before"), list(BEFORE.items())[:6])
def test_local_checkpoints_hold_a_velocity_alone_as_before(text, before):
    _, state = stepped(parse_outer_optimizer(text), torch.tensor([0.9, -0.2, 1.3]))
    stored = store_momentum(state, torch.zeros(3))
    assert stored.tolist() == (numbers(before[1]["velocity"]) if before[1] else [])
    assert stored.dtype == torch.float32


@pytest.mark.parametrize("name", TORCH)
def test_a_class_of_torch_steps_as_torch_does_and_keeps_plain_tensors_and_numbers(name):
    outer, weight = TORCH[name](), torch.tensor([[0.9, -0.2, 1.3]])
    parameter = weight.clone()
    theirs = TORCH[name].source([parameter])
    for gradient in GRADIENTS:
        parameter.grad = torch.tensor([gradient])
        theirs.step()
    ours, state = stepped(outer, weight)
    assert torch.equal(ours, parameter)
    assert all(isinstance(leaf, torch.Tensor | float | int) for leaf in flatten_state(state).values())
    middle, kept = stepped(outer, weight, GRADIENTS[:2])
    again = restore_optimizer_state(outer, weight, decode(*encode(flatten_state(kept))))
    assert torch.equal(stepped(outer, middle, GRADIENTS[2:], again)[0], parameter)
    assert stepped(outer, middle, GRADIENTS[2:], kept)[0].equal(parameter)  # the state it was given is as it was


@pytest.mark.parametrize("name", TORCH)
def test_texts_of_torch_classes_are_read_back(name):
    changed = from_torch(TORCH[name].source, lr=0.25)
    text = f"{name}(lr=0.25)"
    if name not in ("adam", "sgd"):  # ours have those names
        assert parse_outer_optimizer(text) == changed and sync_text(changed) == text
    assert (
        isinstance(changed, OuterOptimizer) and Local(sync_every=2, outer_optimizer=changed).outer_optimizer is changed
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lbfgs()", "closure"),
        ("sparseadam()", "does not support dense gradients"),
        ("rmsprop(lr=-1)", "Invalid learning rate"),
        ("rmsprop(lrr=0.1)", r"no setting 'lrr' here; it has lr, alpha, .*did you mean 'lr'"),
        ('adamw(betas="many")', "expected tuple"),
        ("adam(betas=(0.9,))", "betas must be two numbers"),
        ("adam(lr=0)", "lr must be positive and finite, got 0"),
        ("sgd(momentum=1.0)", r"\[0, 1\)"),
    ],
)
def test_wrong_optimizers_are_refused_when_they_are_read(text, message):
    with pytest.raises(CompositionError, match=message):
        parse_outer_optimizer(text)


def test_a_layer_that_an_optimizer_does_not_take_is_refused_before_the_first_step():
    with pytest.raises(CompositionError, match=r"muon: .*2D parameters"):
        LocalRounds(parse_sync("local(sync_every=2, outer_optimizer=muon())"), {"bias": torch.zeros(3)})
    with pytest.raises(CompositionError, match=r"has the settings lr, .*unexpected keyword argument 'rate'"):
        from_torch(torch.optim.RMSprop, rate=0.1)


LOCAL = [
    f"local(sync_every=2, composition=ef(topk(k=2)), outer_optimizer={o})"
    for o in ("adam(lr=0.1)", "rmsprop(lr=0.1)", "nesterov()")
]


@pytest.mark.parametrize("text", LOCAL)
def test_rounds_resume_with_any_outer_optimizer(text):
    whole = trained(3, text, 9)
    first = workers(3, text)
    lockstep([worker.train(5) for worker in first])
    second = workers(3, text)
    for old, new in zip(first, second, strict=True):
        new.load(decode(*encode(old.state())), 5)
    resumed = lockstep([worker.train(4) for worker in second])
    for one, other in zip(whole, resumed, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in SHAPES)


@pytest.mark.parametrize("text", LOCAL)
def test_states_of_a_world_of_another_size_become_one(text):
    group = workers(2, text)
    lockstep([worker.train(4) for worker in group])
    states = [worker.rounds.state_dict() for worker in group]
    merged = group[0].rounds.merge_states(states)
    alone = LocalRounds(parse_sync(text), start())
    alone.load_state_dict(merged)
    for name in SHAPES:
        ours, theirs = (flatten_state(rounds.momentum[name]) for rounds in (alone, group[0].rounds))
        assert ours.keys() == theirs.keys() and all(
            torch.equal(leaf, theirs[key]) for key, leaf in ours.items() if torch.is_tensor(leaf)
        )


STORED = {  # outer: the weights, the anchor and the momentum after five steps, and the weights after three more
    "average()": ("2.1809799671173096 -0.523775041103363", "2.3122000694274902 -0.35975003242492676", "",
                  "0x1.dc6632p+0 -0x1.d90082p-1"),
    "sgd(momentum=0.5)": ("2.0099799633026123 -0.7375250458717346", "2.1222000122070312 -0.5972500443458557",
                          "0.4977998733520508 0.6222500205039978", "0x1.4db938p+0 -0x1.9ed87cp+0"),
    "nesterov()": ("1.8113086223602295 -0.9858635663986206", "1.9014540910720825 -0.8731817603111267",
                   "0.6259742975234985 0.7824674844741821", "0x1.a4adbcp-1 -0x1.1c89aep+1"),
}  # fmt: skip


@pytest.mark.parametrize("outer", STORED)
def test_a_state_that_was_stored_before_goes_on_with_the_same_bits(outer):
    weights, anchor, momentum = (torch.tensor([float(x) for x in text.split()]) for text in STORED[outer][:3])
    rounds = LocalRounds(parse_sync(f"local(sync_every=2, outer_optimizer={outer})"), {"w": weights})
    stored = {
        "anchor": {"w": anchor},
        "momentum": {"w": momentum},
        "steps_since_sync": {"0": 1},
        "rounds_started": 2,
        "rounds": 2,
    }
    fresh = rounds.state_dict()
    rounds.load_state_dict({**fresh, **stored})
    assert rounds.state_dict().keys() == fresh.keys() and torch.equal(rounds.state_dict()["momentum"]["w"], momentum)

    def train():
        for step in range(5, 8):
            rounds.before_step(step)
            weights.sub_(0.1 * (weights - torch.tensor([1.0, -2.0])))
            yield from rounds.after_step(step, World(0, 1))

    lockstep([train()])
    assert weights.tolist() == numbers(STORED[outer][3])


def test_a_momentum_of_another_form_is_refused_by_name():
    rounds = [
        LocalRounds(parse_sync(f"local(sync_every=2, outer_optimizer={outer})"), start())
        for outer in ("average()", "nesterov()")
    ]
    with pytest.raises(CheckpointError, match="velocity"):
        rounds[1].load_state_dict(rounds[0].state_dict())


@pytest.mark.parametrize("text", ["adam(lr=0.1)", "rmsprop(lr=0.05, momentum=0.5)", "nesterov(lr=0.1)", "average()"])
def test_a_server_takes_a_text_and_resumes_with_the_same_next_step(text):
    def make():
        return GradientServer({"w": torch.tensor([3.0, -1.0, 0.5, 2.0])}, text, workers=1)

    def push(server, name, steps):
        return run_worker(
            InProcess(Handler(server), name), GradientWorker(name, server.layers), lambda weights, step: weights, steps
        )

    once, whole = make(), make()
    push(once, "a", 3)
    resumed = make()
    resumed.load_state_dict(decode(*encode(once.state_dict())))
    assert push(resumed, "b", 2) == push(once, "b", 2) == 2
    assert torch.equal(resumed.weights["w"], once.weights["w"]) and resumed.optimizer == resolve_outer_optimizer(text)
    push(whole, "a", 3)
    outer, weight = parse_outer_optimizer(text), torch.tensor([3.0, -1.0, 0.5, 2.0])
    state = outer.init(weight)
    for _ in range(3):
        weight, state = outer.step(weight, weight, state)
    assert torch.equal(whole.weights["w"], weight)


def test_a_federation_takes_a_text():
    assert FederatedServer(
        {"w": torch.zeros(2)}, FederatedConfig(1, 1), optimizer="adam()"
    ).optimizer == parse_outer_optimizer("adam()")
