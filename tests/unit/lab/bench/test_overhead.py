"""The benchmark of overhead: its arithmetic, and that it measures both drivers."""

import json

import pytest

from thinwire.cli.main import main
from thinwire_lab.bench.overhead import Cost, count_calls, split_cost


def test_costs_of_layers_and_of_steps_add_up():
    cost = split_cost(many=0.5 + 60 * 0.02, one=0.5 + 0.02)
    assert (cost.layer, cost.step) == (pytest.approx(0.02), pytest.approx(0.5))
    assert split_cost(12.0, 2.0, layers=11) == Cost(1.0, 1.0)


def test_calls_are_those_of_one_step():
    def run(steps):
        for _ in range(steps):
            for _ in range(100):
                len(())

    assert count_calls(run, 7) == pytest.approx(100, abs=2)


def test_both_drivers_are_measured(tmp_path, capsys):
    file = tmp_path / "overhead.json"
    words = ["bench", "overhead", "--steps", "1", "--composition", "ef(sign())", "--composition", "dense()"]
    assert main([*words, "--json", str(file)]) == 0
    sign, dense = json.loads(file.read_text())
    assert (sign["composition"], dense["composition"]) == ("ef(sign())", "dense()")
    assert sign["calls"]["layer"] > dense["calls"]["layer"] > 1
    assert sign["lockstep_ms"].keys() == sign["processes_ms"].keys() == {"layer", "step"}
    out = capsys.readouterr()
    assert "ef(sign())" in out.out and "two processes: dense()" in out.err


def test_lockstep_alone_needs_no_processes(tmp_path):
    file = tmp_path / "overhead.json"
    words = ["bench", "overhead", "--steps", "1", "--composition", "dense()", "--no-processes"]
    assert main([*words, "--json", str(file)]) == 0
    assert json.loads(file.read_text())[0]["processes_ms"] is None
