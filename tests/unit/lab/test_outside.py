"""Parts and tasks from outside in the laboratory: as objects, by a table of a config, by registration."""

from dataclasses import dataclass

import pytest
import torch

from helpers.laboratory import run_plan
from thinwire import CompositionError
from thinwire.aggregators import GatherMean
from thinwire.catalog import REGISTRY
from thinwire.compressors import TopK
from thinwire.feedback import ErrorFeedback
from thinwire.sync import Local
from thinwire.testing import keep_registry
from thinwire_lab import tasks
from thinwire_lab.configuration.class_paths import get_class_path, import_file
from thinwire_lab.configuration.config import Experiment, Method, TaskConfig
from thinwire_lab.running.build_jobs import build_run_plan
from thinwire_lab.sources import load_run_plan
from thinwire_lab.tables import ConfigError
from thinwire_lab.tasks import make_task, register_task
from thinwire_lab.tasks.digits import Digits

SCRIPT = """
from dataclasses import dataclass
from thinwire.compressors import TopK
from thinwire_lab.configuration.config import Experiment, Method, TaskConfig
from thinwire_lab.tasks.digits import Digits
from thinwire_lab.tasks import register_task
from thinwire.feedback import ErrorFeedback
from thinwire.aggregators import GatherMean

@dataclass(frozen=True)
class MyTopK(TopK):
    \"\"\"Mine.\"\"\"

@register_task("my_digits")
@dataclass(frozen=True)
class MyDigits(Digits):
    pass

def experiment():
    return Experiment("own", TaskConfig("my_digits", {"width": 8}), steps=2, methods=(
        Method("mine", ErrorFeedback(GatherMean(MyTopK(density=0.1)))),
        Method("bare", MyTopK(k=3)),
        Method("ours", "ef(topk(density=0.1))"),
    ))
"""


@pytest.fixture(autouse=True)
def kept():
    held = dict(tasks.TASKS)
    with keep_registry():
        yield
    tasks.TASKS.clear()
    tasks.TASKS.update(held)


def test_a_method_given_as_an_object_is_kept_as_its_text():
    assert Method("a", ErrorFeedback(GatherMean(TopK(density=0.1)))).composition == "ef(topk(density=0.1))"
    assert Method("a", TopK(k=3)) == Method("a", "topk(k=3)"), "a bare compressor gets its default aggregator"
    rounds = Local(sync_every=4, composition=GatherMean(TopK(k=3)))
    assert Method("a", rounds).composition == "local(sync_every=4, composition=topk(k=3))"
    made = Experiment.from_dict({"task": "digits", "steps": 1, "methods": {"a": TopK(k=3)}}, "x")
    assert made.methods == (Method("a", "topk(k=3)"),) and "parts" not in made.to_dict()


def test_a_part_of_ones_own_runs_in_worker_processes(tmp_path):
    """Out of a script that no process finds by its name."""
    file = tmp_path / "own_experiment.py"
    file.write_text(SCRIPT)
    plan, config = load_run_plan(f"{file}:experiment")
    assert config["parts"] == {"MyTopK": f"{file}:MyTopK"} and config["tasks"] == {"my_digits": f"{file}:MyDigits"}
    result = run_plan(plan)
    mine, bare, ours = result["runs"]
    assert mine["composition"] == "ef(MyTopK(density=0.1))" and bare["composition"] == "MyTopK(k=3)"
    assert mine["curve"]["loss"] == ours["curve"]["loss"], "a subclass that changes nothing gives the same numbers"


def test_a_config_names_classes_by_module_or_file(tmp_path):
    (tmp_path / "own_parts.py").write_text(SCRIPT)
    parts = {"mine": f"{tmp_path / 'own_parts.py'}:MyTopK"}
    config = {"task": "digits", "steps": 1, "methods": {"a": "mine(k=3)"}, "parts": parts}
    made = Experiment.from_dict(config, "x")
    assert made.to_dict()["parts"] == parts and Experiment.from_dict(made.to_dict()) == made


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"mine": "no_such_module:Mine"}, "parts: mine: no_such_module:Mine cannot be imported: ModuleNotFoundError"),
        ({"mine": "json"}, 'parts: mine: must be a path such as "my_package.parts:MyTopK"'),
        ({"mine": "json:JSONDecoder"}, "parts: mine: register: JSONDecoder implements the protocol of no part"),
        ("json:JSONDecoder", "parts: must be a table"),
    ],
)
def test_a_class_that_cannot_be_used_is_named_with_its_key(parts, words):
    with pytest.raises(ConfigError, match=words):
        Experiment.from_dict({"task": "digits", "steps": 1, "methods": {"a": "dense()"}, "parts": parts}, "x")


def test_an_object_without_settings_that_a_text_can_hold_is_refused_with_the_remedy():
    @dataclass(frozen=True)
    class Odd(TopK):
        weights: torch.Tensor | None = None

    with pytest.raises(ConfigError, match=r"methods: a: register: Odd.weights is Tensor, which a text cannot express"):
        Method("a", Odd(k=3))
    with pytest.raises(ConfigError, match=r"methods: a: .* is no part; expected an aggregator"):
        Method("a", 3)


def test_a_class_that_workers_cannot_import_is_refused_before_anything_starts():
    @dataclass(frozen=True)
    class Inside(TopK):
        pass

    experiment = Experiment("x", TaskConfig("digits"), (Method("a", Inside(k=3)),), steps=1)
    assert REGISTRY.name_of(Inside) == "Inside"
    with pytest.raises(ConfigError, match=r"Inside cannot be imported by worker processes; define it in a module"):
        build_run_plan(experiment)


def test_paths_of_packages_are_names_and_those_of_scripts_are_files(tmp_path):
    assert get_class_path(Digits, "task") == "thinwire_lab.tasks.digits:Digits"
    (tmp_path / "loose.py").write_text("class A:\n    pass\n")
    loose = import_file(tmp_path / "loose.py")
    assert (
        get_class_path(loose.A, "task") == f"{tmp_path / 'loose.py'}:A" and import_file(tmp_path / "loose.py") is loose
    )


def test_a_registered_task_is_made_by_name_with_its_settings():
    @register_task("mine")
    @dataclass(frozen=True)
    class Mine(Digits):
        pass

    assert make_task("mine", {"width": 8}) == Mine(width=8) and register_task("mine", Mine) is Mine
    with pytest.raises(CompositionError, match=r"mine: there is no setting 'widht'.*did you mean 'width'"):
        make_task("mine", {"widht": 8})
    with pytest.raises(CompositionError, match=r"task must be one of .*mine, got 'mien'"):
        make_task("mien")


@pytest.mark.parametrize(
    ("name", "cls", "words"),
    [
        ("digits", TopK, "TopK is not a task: it has no prepare, learner, describe, smoothness"),
        ("my digits", Digits, "the name must be an identifier such as 'my_task', got 'my digits'"),
        ("mine", Digits(), "'mine' must be a dataclass with the task's settings as fields"),
        (
            "digits",
            dataclass(frozen=True)(type("Other", (Digits,), {})),
            "the name 'digits' is taken by .digits:Digits",
        ),
    ],
)
def test_what_is_no_task_is_refused_with_the_reason(name, cls, words):
    with pytest.raises(CompositionError, match=words):
        register_task(name, cls)
