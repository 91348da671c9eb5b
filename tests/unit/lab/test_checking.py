"""What cannot run is refused before anything starts: exit code 2, one line with the key and what would do."""

import json
import re

import pytest

from thinwire import PeerLostError
from thinwire.cli.main import main
from thinwire.drivers.processes import error_text, last_lines
from thinwire_lab.configuration.config import Experiment
from thinwire_lab.configuration.run_plan import Job, RunPlan
from thinwire_lab.measuring.folder import RunFolder
from thinwire_lab.running import run_jobs as running
from thinwire_lab.running.build_jobs import build_run_plan

LOGISTIC = {"name": "x", "task": {"name": "logistic"}, "steps": 4, "workers": 3, "methods": {"a": "dense()"}}
DIGITS = LOGISTIC | {"task": {"name": "digits", "width": 8}}


def method(composition, **settings):
    return {"methods": {"a": {"composition": composition, **settings}}}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            DIGITS | {"optimizer": {"lr": "1/L"}},
            r"optimizer\.lr: '1/L' needs a task with a known smoothness L, .* use a number",
        ),
        (DIGITS | method("dense()", lr="0.5/L"), r"methods: a: lr: '0.5/L' needs a task with a known smoothness"),
        (
            LOGISTIC | method("gossip(identity(), hypercube())"),
            r"methods: a: workers = 3: Hypercube: .* power of two, got 3; exponential\(\) takes any",
        ),
        (
            LOGISTIC | method("local(sync_every=2, composition=gossip(identity(), hypercube()))"),
            r"methods: a: workers = 3: Hypercube: .* got 3",
        ),
        (LOGISTIC | method("gossip(identity(), star(center=7))"), "methods: a: workers = 3: Star: center is rank 7"),
        (
            LOGISTIC | method("gossip(identity(), matrix(rows=((0.5, 0.5), (0.5, 0.5))))"),
            "methods: a: workers = 3: Matrix: it has 2 rows for a world of 3 ranks",
        ),
        (
            LOGISTIC | method("switch(topk(density=0.1), dense(), controller=fixed(default=5))"),
            "methods: a: the plan gives layer weights option 5; its menu has 2, counted from 0",
        ),
        (
            LOGISTIC | method("local(sync_every=20, num_fragments=9)"),
            "methods: a: local: num_fragments must be at most the number of layers, 1, got 9",
        ),
        (
            LOGISTIC | method("impk(density=0.1)", importance={"stepz": 3}),
            r"methods: a: importance: stepz: no such key \(did you mean 'steps'\?\)",
        ),
        (
            LOGISTIC | method("impk(density=0.1)", importance={"steps": "many"}),
            "methods: a: importance: steps: must be a whole number, got 'many'",
        ),
        (
            LOGISTIC | method("impk(density=0.1)", importance={"eta": 0.0}),
            "methods: a: importance: ImportanceSolver: eta must be positive",
        ),
        (
            LOGISTIC | method("topk(density=0.1)", importance={"steps": 3}),
            r"methods: a: importance: no part of topk\(density=0.1\) takes one; use impk",
        ),
        (
            DIGITS | {"optimizer": {"name": "adamw", "betas": [0.9]}},
            r"optimizer.betas: must be two numbers in \[0, 1\)",
        ),
        (DIGITS | {"optimizer": {"name": "adamw", "betas": [1.5, 0.9]}}, "optimizer.betas: .* got"),
        (DIGITS | {"optimizer": {"momentum": -1.0}}, "optimizer.momentum: must not be negative, got -1.0"),
        (DIGITS | {"seeds": [1, -1]}, r"seeds: each must be in \[0, 2\^32\), got -1"),
        (DIGITS | {"trace_steps": -1}, "trace_steps: must not be negative, got -1"),
        (DIGITS | {"dense_below": -3}, "dense_below: must not be negative, got -3"),
        (DIGITS | {"optimizer": {"warmup_steps": -1}}, "optimizer.warmup_steps: must not be negative, got -1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_config_that_cannot_run_is_refused_in_one_line(tmp_path, capsys, config, said):
    (tmp_path / "x.json").write_text(json.dumps(config))
    assert main(["run", str(tmp_path / "x.json"), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert re.search(said, line), line
    assert not (tmp_path / "out").exists() and "resume" not in printed.out


def test_the_group_of_a_refused_method_is_named():
    groups = [{"workers": 4, "title": "four"}, {"workers": 3, "title": "three"}]
    config = LOGISTIC | method("gossip(identity(), hypercube())") | {"groups": groups}
    del config["workers"]
    with pytest.raises(ValueError, match="groups: three: methods: a: workers = 3: Hypercube"):
        build_run_plan(Experiment.from_dict(config))


def test_methods_that_a_group_does_not_run_are_not_put_together_for_it():
    groups = [{"workers": 4, "title": "four"}, {"workers": 3, "title": "three", "methods": ["b"]}]
    config = LOGISTIC | {"methods": {"a": "gossip(identity(), hypercube())", "b": "dense()"}, "groups": groups}
    del config["workers"]
    assert len(build_run_plan(Experiment.from_dict(config)).jobs) == 3


LOG = """
a line that came before
[rank1]: Traceback (most recent call last):
[rank1]:   File "somewhere.py", line 3, in <module>
[rank1]:     raise ValueError(words)
[rank1]: ValueError: {words}
[rank1]: and a second line
"""


def test_the_error_of_a_rank_is_shown_whole_however_long_it_is():
    words = " ".join(f"word{number}" for number in range(900))
    log = LOG.format(words=words).strip()
    assert error_text(log) == f"ValueError: {words}\nand a second line"
    assert last_lines(log) == "...\n[rank1]: and a second line"
    assert last_lines("one\ntwo", 3) == "...\ntwo" and last_lines("") == ""
    assert error_text("Killed\n") == "Killed"


def test_a_job_that_fails_is_named_with_its_error_and_where_its_log_is(tmp_path, monkeypatch):
    def run_ranks(size, job, orders, **options):
        error = PeerLostError(f"rank 1 of {size} failed:\n...")
        error.log = LOG.format(words="no such thing").strip()
        raise error

    monkeypatch.setattr(running, "run_ranks", run_ranks)
    folder = RunFolder.create(tmp_path / "run", {}, "test")
    plan = RunPlan("p", {}, [Job("key", "m:f", {}, title="Top-k, seed 1", ranks=2)])
    with pytest.raises(PeerLostError) as caught:
        running.run_jobs(plan, folder)
    log = folder.path / "jobs" / "key" / "error.log"
    assert str(caught.value) == (
        f"Top-k, seed 1: rank 1 of 2 failed: ValueError: no such thing\nand a second line\nFull log: {log}"
    )
    assert log.read_text().startswith("a line that came before\n[rank1]: Traceback")
