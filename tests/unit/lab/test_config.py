"""Configs: what is wrong is refused by key, value and remedy; what is right survives being written and read."""

import pytest

from thinwire_lab.configuration.config import Experiment
from thinwire_lab.configuration.learning_rates import resolve_learning_rate
from thinwire_lab.running.build_jobs import build_run_plan, count_steps, read_experiment
from thinwire_lab.tables import ConfigError

GOOD = {
    "name": "mine", "task": {"name": "logistic"}, "steps": 10, "seeds": [1, 2], "workers": 3, "split": "label-sorted",
    "optimizer": {"lr": "1/L", "schedule": "cosine"}, "target": {"metric": "loss", "value": 0.1},
    "methods": {"dense": "dense()", "importance": {"composition": "impk(k=9)", "lr": 0.1, "importance": {"steps": 5}}},
}  # fmt: skip


def changed(**changes):
    config = {**GOOD, **changes}
    return {key: value for key, value in config.items() if value is not None}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (changed(stepps=3), ["stepps", "did you mean 'steps'"]),
        (changed(steps="many"), ["steps", "a whole number", "'many'"]),
        (changed(steps=None), ["steps, epochs", "exactly one"]),
        (changed(epochs=1.0), ["steps, epochs", "exactly one"]),
        (changed(steps=-1), ["steps", "above 0", "-1"]),
        (changed(seeds=[]), ["seeds", "must not be empty"]),
        (changed(seeds=[1, 1]), ["seeds", "twice"]),
        (changed(seeds=[1, "two"]), ["seeds[1]", "whole number", "two"]),
        (changed(workers=0), ["workers", "above 0"]),
        (changed(driver="mpi"), ["driver", "lockstep, processes", "'mpi'"]),
        (changed(link="fast"), ["link", "fast"]),
        (changed(link="100mbit"), ["link", "needs driver"]),
        (changed(driver="processes", workers=1), ["workers", "2 or more"]),
        (changed(methods={}), ["methods", "must not be empty"]),
        (changed(methods=None), ["methods", "missing"]),
        (changed(methods={"x": "topk(density=2)"}), ["methods: x", "density", "2"]),
        (changed(methods={"x": "nonsense()"}), ["methods: x", "nonsense"]),
        (changed(methods={"x": {"composition": "dense()", "speed": 1}}), ["methods: x", "speed"]),
        (changed(methods={"x": {"composition": "dense()", "lr": "fast"}}), ["methods: x", "lr", "'fast'"]),
        (changed(methods={"x": {"composition": "dense()", "importance": {"stps": 1}}}), ["importance", "stps"]),
        (changed(optimizer={"name": "adam"}), ["optimizer", "sgd, adamw, cadamw", "'adam'"]),
        (changed(optimizer={"lr": 0.0}), ["optimizer", "lr", "above 0"]),
        (changed(optimizer={"momentum": "much"}), ["optimizer", "momentum", "'much'"]),
        (changed(target={"metric": "beauty", "value": 1}), ["target", "metric", "beauty"]),
        (changed(task=None), ["task", "missing"]),
        (changed(task=7), ["task", "7"]),
        (changed(groups=[{"workers": 2}]), ["workers", "must be set in [[groups]]"]),
        (changed(name="a/b"), ["name", "a/b"]),
        (changed(log_every=0), ["log_every", "above 0"]),
    ],
)
def test_what_is_wrong_is_named(config, words):
    with pytest.raises(ConfigError) as refused:
        Experiment.from_dict(config)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (changed(task="nothing"), "nothing"),
        (changed(task={"name": "logistic", "rigde": 1.0}), "rigde"),
        (changed(split="random"), "random"),
        (changed(steps=None, epochs=2.0), "epochs"),
        (changed(workers=9000), "9000"),
    ],
)
def test_what_a_task_does_not_know_is_refused_before_anything_starts(config, word):
    with pytest.raises(ValueError, match=word):
        build_run_plan(Experiment.from_dict(config))


def test_a_config_survives_being_written_and_read():
    experiment = Experiment.from_dict(GOOD)
    assert Experiment.from_dict(experiment.to_dict()) == experiment
    assert experiment.groups[0].title == "3 workers, label-sorted, lockstep"
    assert experiment.methods[1].solver().steps == 5


def test_a_toml_file_is_read_and_its_name_is_the_experiments(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('steps = 3\ntask = "logistic"\n[methods]\ndense = "dense()"\n')
    assert read_experiment(file).name == "mine"
    file.write_text("steps = = 3")
    with pytest.raises(ConfigError, match=r"mine.toml"):
        read_experiment(file)
    with pytest.raises(ConfigError, match="No such file"):
        read_experiment(tmp_path / "other.toml")


def test_rates_may_be_fractions_of_the_smoothness():
    assert resolve_learning_rate(0.5, None) == 0.5 and resolve_learning_rate("2/L", 4.0) == 0.5
    with pytest.raises(ConfigError, match="smoothness"):
        resolve_learning_rate("1/L", None)


def test_epochs_are_those_of_all_workers_together():
    experiment = Experiment.from_dict(changed(steps=None, epochs=2.0))
    assert count_steps(experiment, experiment.groups[0], {"examples": 100, "batch": 10}) == 7  # 200 of 30 a step
