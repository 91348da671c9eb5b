"""Tasks: laws that the learners of every task keep, and what is special to some."""

from __future__ import annotations

import copy
import json
import math
import random
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from helpers import tiny_data
from thinwire.core import CompositionError, derive_key
from thinwire_lab.data import DataError
from thinwire_lab.tasks import TASKS, folders, make_task
from thinwire_lab.tasks.batches import batch_positions, crop_and_flip
from thinwire_lab.tasks.logistic import hold_out, mushrooms
from thinwire_lab.tasks.splits import Split, split_rows

GPT = {"layers": 2, "width": 24, "heads": 2, "context": 8, "batch": 3, "valid_windows": 5}
SETTINGS = {
    "logistic": ("logistic", {}),
    "logistic, batches": ("logistic", {"batch": 20, "held_out": 0.2, "dtype": "float64"}),
    "logistic, a9a": ("logistic", {"data": "a9a"}),
    "digits": ("digits", {"width": 16}),
    "cifar10, cnn": ("cifar10", {"model": "cnn", "images": 60, "test_images": 20, "batch": 8}),
    "cifar10, slim": ("cifar10", {"model": "slim", "images": 60, "test_images": 20, "batch": 8}),
    "cifar100": ("cifar100", {"images": 100, "test_images": 20, "batch": 8, "augment": False}),
    "folders": ("image_folder", {"model": "resnet18", "pixels": 32, "batch": 4, "test_images": 5}),
    "wikitext2": ("wikitext2", GPT | {"tokens": "all"}),
    "wikitext2, bytes": ("wikitext2_bytes", GPT | {"tokens": "all"}),
    "wikitext103": ("wikitext103", GPT | {"tokens": "all"}),
    "shakespeare": ("shakespeare", GPT | {"tokens": 900}),
}
EVERY = pytest.mark.parametrize("kind", SETTINGS)
IID = Split("iid")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for write in (tiny_data.write_wikitext, tiny_data.write_shakespeare, tiny_data.write_a9a):
        write(folder)
    tiny_data.write_wikitext(folder, name="wikitext-103")
    if find_spec("PIL"):
        tiny_data.write_images(folder)
    tiny_data.write_cifar(folder, 10)
    return tiny_data.write_cifar(folder, 100, per_file=100)


@pytest.fixture
def make(folder, monkeypatch):
    monkeypatch.setitem(folders.MODELS, "resnet18", tiny_data.tiny_resnet)  # seconds instead of minutes

    def made(kind):
        name, settings = SETTINGS[kind]
        if name == "image_folder":
            pytest.importorskip("PIL", reason="image folders need the extra `images`")
        return make_task(name, settings, folder)

    return made


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def train(learner, steps, lr=0.05):
    for step in steps:
        _, gradients = learner.gradients(step)
        with torch.no_grad():
            for name, parameter in learner.parameters.items():
                parameter -= lr * gradients[name]


def test_every_task_is_tried():
    assert {name for name, _ in SETTINGS.values()} == set(TASKS)


@EVERY
def test_all_ranks_start_alike_and_the_seed_decides(make, kind):
    task = make(kind)
    task.prepare(3, IID)
    one, two, other = task.learner(0, 3, IID, 1), task.learner(2, 3, IID, 1), task.learner(0, 3, IID, 2)
    assert same(one.parameters, two.parameters) and same(one.state_dict(), two.state_dict())
    assert kind.startswith("logistic") or not same(one.parameters, other.parameters)
    assert all(parameter.is_leaf for parameter in one.parameters.values())


@EVERY
def test_a_batch_follows_from_seed_rank_and_step_alone(make, kind):
    task = make(kind)
    one, two, other = task.learner(1, 2, IID, 5), task.learner(1, 2, IID, 5), task.learner(0, 2, IID, 5)
    later = one.gradients(7)
    one.gradients(3)
    torch.rand(5), np.random.rand(5)
    assert one.gradients(7)[0] == two.gradients(7)[0] == later[0]
    assert same(two.gradients(7)[1], later[1])
    assert all(gradient.is_contiguous() for gradient in later[1].values())
    assert not same(other.gradients(7)[1], later[1])


@EVERY
def test_nothing_draws_from_the_global_generators(make, kind):
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    learner = make(kind).learner(0, 2, IID, 1)
    learner.gradients(0)
    learner.objective(0).value(learner.parameters)
    learner.measure()
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[2]
    assert np.array_equal(np.random.get_state()[1], before[1])


@EVERY
def test_measuring_leaves_no_trace(make, kind):
    learner = make(kind).learner(0, 2, IID, 1)
    train(learner, range(2))
    model = getattr(learner, "model", torch.nn.Module())
    before = copy.deepcopy((learner.parameters, learner.state_dict(), [m.training for m in model.modules()]))
    figures = learner.measure()
    assert figures == learner.measure()
    assert set(figures) <= {"loss", "accuracy", "perplexity", "train_loss", "grad_norm"}
    assert all(isinstance(value, float) and math.isfinite(value) for value in figures.values())
    after = learner.parameters, learner.state_dict(), [m.training for m in model.modules()]
    assert same(before[0], after[0]) and same(before[1], after[1]) and before[2] == after[2]


@EVERY
def test_the_objective_is_the_loss_of_the_batch_and_leaves_no_trace(make, kind):
    learner = make(kind).learner(0, 2, IID, 1)
    train(learner, range(2))
    at = {name: parameter.detach().clone() for name, parameter in learner.parameters.items()}
    before = copy.deepcopy(learner.state_dict())
    objective = learner.objective(4)
    value, gradient = objective.value_and_gradient(at)
    assert same(before, learner.state_dict()) and same(at, {n: p.detach() for n, p in learner.parameters.items()})
    loss, gradients = learner.gradients(4)
    assert value == pytest.approx(loss, rel=1e-6) and objective.value(at) == pytest.approx(loss, rel=1e-5)
    for name in gradients:
        torch.testing.assert_close(gradient[name], gradients[name], rtol=1e-4, atol=1e-7)


@EVERY
def test_a_resumed_learner_goes_on_with_the_same_bits(make, kind):
    task = make(kind)
    one, two = task.learner(1, 2, IID, 1), task.learner(1, 2, IID, 1)
    train(one, range(3))
    stored = copy.deepcopy(({n: p.detach() for n, p in one.parameters.items()}, one.state_dict()))
    train(one, range(3, 5))
    with torch.no_grad():
        for name, parameter in two.parameters.items():
            parameter.copy_(stored[0][name])
    two.load_state_dict(stored[1])
    train(two, range(3, 5))
    assert same(one.parameters, two.parameters) and same(one.state_dict(), two.state_dict())
    assert one.measure() == two.measure()


@EVERY
def test_a_state_of_something_else_is_refused(make, kind):
    with pytest.raises(CompositionError, match="other"):
        make(kind).learner(0, 1, IID, 1).load_state_dict({"other": torch.zeros(1)})


@EVERY
def test_facts_are_plain_and_say_where_the_data_are_from(make, kind):
    task = make(kind)
    facts = task.describe()
    assert json.loads(json.dumps(facts)) == facts and facts["data"] and facts["examples"] > 0
    parameters = task.learner(0, 1, IID, 1).parameters
    assert facts["parameters"] == sum(parameter.numel() for parameter in parameters.values())
    assert (task.smoothness is not None) == kind.startswith("logistic")


@EVERY
def test_gradient_descent_lowers_the_loss(make, kind):
    learner = make(kind).learner(0, 1, IID, 1)
    before = learner.objective(0).value(learner.parameters)
    train(learner, range(12), lr=0.3 if "logistic" in kind else 0.02 if "cifar" in kind or kind == "folders" else 0.2)
    assert learner.objective(0).value(learner.parameters) < before


# batches


@pytest.mark.parametrize(("batch", "count"), [(1, 1), (3, 10), (10, 10), (25, 10), (7, 50)])
def test_every_example_comes_once_an_epoch(batch, count):
    steps = 4 * count
    seen = torch.cat([batch_positions(step, batch, count, 1, 0) for step in range(steps)])
    assert len(seen) == steps * batch
    for epoch in range(steps * batch // count):
        assert seen[epoch * count : (epoch + 1) * count].sort().values.tolist() == list(range(count))


def test_epochs_and_ranks_have_orders_of_their_own():
    def epoch(which, rank, seed=1):
        return batch_positions(which, 100, 100, seed, rank).tolist()

    orders = [epoch(0, 0), epoch(1, 0), epoch(0, 1), epoch(0, 0, seed=2)]
    assert len({tuple(order) for order in orders}) == 4


def test_a_cropped_image_is_the_image_moved_and_mirrored_or_not():
    images = torch.arange(200 * 3 * 8 * 8).remainder(255).add(1).to(torch.uint8).view(200, 3, 8, 8)
    made = crop_and_flip(images, derive_key(1), edge=2)
    seen = set()
    for image, result in zip(images, made, strict=True):
        padded = torch.nn.functional.pad(image, (2, 2, 2, 2))
        places = {
            (down, right, flip)
            for down in range(5)
            for right in range(5)
            for flip in (False, True)
            if torch.equal(
                result, (lambda x, f: x.flip(2) if f else x)(padded[:, down : down + 8, right : right + 8], flip)
            )
        }
        assert len(places) == 1
        seen |= places
    assert len(seen) > 40  # of 50
    assert torch.equal(made, crop_and_flip(images, derive_key(1), edge=2))
    assert not torch.equal(made, crop_and_flip(images, derive_key(2), edge=2))


# special to some


def test_gradients_are_those_of_the_mean_loss_over_the_batch(folder):
    settings = {"model": "slim", "images": 60, "test_images": 20, "batch": 8, "augment": False}
    task = make_task("cifar10", settings, folder)
    learner = task.learner(1, 2, IID, 3)
    pixels = torch.from_numpy(np.concatenate([tiny_data.cifar_rows(20, 10, seed) for seed in range(3)]))
    rows = split_rows(pixels[:, 0].numpy(), 2, IID, 3)[1]
    rows = rows[batch_positions(5, 8, len(rows), 3, 1).numpy()]
    mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    images = (pixels[rows, 1:].view(-1, 3, 32, 32) / 255 - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)
    model = copy.deepcopy(learner.model)
    loss = cross_entropy(model(images), pixels[rows, 0].long())
    loss.backward()
    found, gradients = learner.gradients(5)
    assert found == pytest.approx(float(loss.detach()), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("text", ["iid", "label-sorted", "dirichlet(0.2)"])
def test_full_gradients_of_the_shares_add_up_to_the_whole(text):
    task, size = make_task("logistic", {"dtype": "float64"}), 7
    learners = [task.learner(rank, size, Split.parse(text), 1) for rank in range(size)]
    weights = torch.linspace(-1, 1, 112, dtype=torch.float64)
    for learner in learners:
        learner.parameters["weights"].copy_(weights)
    total = sum(len(x.share.labels) / 8124 * x.gradients(0)[1]["weights"] for x in learners)
    torch.testing.assert_close(total, mushrooms(1e-3, torch.float64).gradient(weights))


def test_logistic_figures_are_of_the_whole_and_of_the_rows_held_out():
    task = make_task("logistic", {"held_out": 0.2, "held_out_seed": 3})
    whole, test = hold_out(mushrooms(1e-3), 0.2, seed=3)
    learner = task.learner(0, 4, Split("sorted"), 9)
    train(learner, range(5))
    weights = learner.parameters["weights"]
    figures = learner.measure()
    assert figures["train_loss"] == float(whole.loss(weights)) and figures["loss"] == float(test.loss(weights))
    assert figures["grad_norm"] == float(whole.gradient(weights).norm())
    assert figures["accuracy"] == float(test.accuracy(weights)) and task.smoothness == whole.smoothness


def test_a_text_is_shared_in_stretches_and_every_word_is_predicted_once_an_epoch(folder):
    task = make_task("wikitext2", GPT | {"tokens": "all", "batch": 1}, folder)
    learners = [task.learner(rank, 2, IID, 1) for rank in range(2)]
    inputs = [torch.cat([learner.batch(step)[0].flatten() for step in range(30)]) for learner in learners]
    text = task._text()
    assert len(text.train) == 480  # 60 lines of seven words and <eos>
    for rank, seen in enumerate(inputs):  # 29 windows of 8, then the next epoch
        stretch = text.train[240 * rank : 240 * rank + 232]
        assert torch.equal(seen[:232].sort().values, stretch.sort().values)
    figures = learners[0].measure()
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    assert figures["perplexity"] == pytest.approx(len(text.vocabulary), rel=0.3)  # nothing is learnt yet


@pytest.mark.parametrize("name", ["wikitext2", "shakespeare"])
def test_a_text_has_no_labels_to_be_split_by(folder, name):
    for text in ("label-sorted", "dirichlet(0.3)"):
        with pytest.raises(CompositionError, match="a text has no labels"):
            make_task(name, GPT | {"tokens": "all"}, folder).prepare(2, Split.parse(text))


def test_gpt2_small_is_an_option(folder):
    task = make_task("shakespeare", {"size": "gpt2"}, folder)
    assert (task.layers, task.width, task.heads) == (12, 768, 12)
    again = make_task("shakespeare", {"size": "gpt2", "layers": 12, "width": 768, "heads": 12}, folder)
    assert (
        again == task and 85e6 < task.describe()["parameters"] < 86e6
    )  # 124 M with GPT-2's own 50,257 tokens and 1,024 places


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("cifar", {}, "did you mean 'cifar"),
        ("digits", {"widht": 3}, "there is no setting 'widht'.*did you mean 'width'"),
        ("digits", {"folder": "x"}, "there is no setting 'folder'"),
        ("digits", {"width": "3"}, "width must be a whole number, got '3'"),
        ("digits", {"batch": 0}, "batch must be at least 1, got 0"),
        ("digits", {"batch": True}, "batch must be a whole number, got True"),
        ("cifar10", {"model": "vgg"}, "model must be cnn or small cnn or slim or resnet18, got 'vgg'"),
        ("cifar10", {"augment": 1}, "augment must be true or false, got 1"),
        (
            "image_folder",
            {"set": "../imagenet"},
            "set must be the name of a folder such as imagenet, got '../imagenet'",
        ),
        ("image_folder", {"pixels": 16}, "pixels must be at least 32, got 16; 224 is usual"),
        ("image_folder", {"model": "slim"}, "model must be resnet18 or resnet50, got 'slim'"),
        ("wikitext2", {"tokens": "most"}, "tokens must be a whole number or all, got 'most'"),
        ("wikitext2", {"tokens": 0}, "tokens must be at least 1"),
        ("wikitext2", {"width": 100, "heads": 3}, "width must be a multiple of heads, got 100 and 3"),
        ("wikitext2", {"size": "gpt2", "layers": 3}, "size='gpt2' means"),
        ("logistic", {"held_out": 1.0}, r"held_out must be in \[0, 1\), got 1.0"),
        ("logistic", {"ridge": -1.0}, "ridge must be at least 0"),
        ("logistic", {"ridge": float("nan")}, "ridge must be at least 0"),
        ("logistic", {"data": "a9a", "held_out": 0.1}, "a9a has a test set of its own"),
        ("logistic", {"dtype": "float16"}, "dtype must be float32 or float64"),
    ],
)
def test_bad_settings_are_refused_with_what_would_do(name, settings, says):
    with pytest.raises(CompositionError, match=says):
        make_task(name, settings)


def test_too_many_workers_or_tokens_are_refused_before_anything_starts(folder):
    with pytest.raises(CompositionError, match="60 examples cannot be split over 61 workers"):
        make_task("cifar10", {"images": 60, "test_images": 20}, folder).prepare(61, IID)
    with pytest.raises(CompositionError, match="tokens must be at most 480"):
        make_task("wikitext2", GPT, folder).prepare(2, IID)


def test_what_is_missing_is_said_when_a_task_is_prepared(tmp_path):
    for name in ("cifar10", "cifar100", "image_folder", "wikitext2", "wikitext2_bytes", "wikitext103", "shakespeare"):
        with pytest.raises(DataError, match=f"not found in {tmp_path}"):
            make_task(name, {}, tmp_path).prepare(1, IID)
    with pytest.raises(DataError, match="no such file"):
        make_task("logistic", {"data": str(tmp_path / "none")}).prepare(1, IID)
