"""tools/test_versions.py: which interpreters and releases it takes, what it writes; doctor and README tell the same."""

import importlib.util
import json
import platform
import sys
from pathlib import Path

import pytest

from thinwire.core.tested import describe_tests, read_tested_versions
from thinwire.self_test import examine_machine

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("versions_tool", ROOT / "tools" / "test_versions.py")
tool = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tool)

RESULT = '<testsuites><testsuite tests="9" failures="2" errors="1" skipped="3"/></testsuites>'


def entry(python="3.10.13", torch="2.10.0+cpu", **counts):
    counts = {"passed": 5, "failed": 0, "skipped": 1} | counts
    return {"python": python, "torch": torch, "numpy": "2.2.6", "date": "2026-01-02"} | counts


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(tool, "README", tmp_path / "README.md")
    tool.RECORD.write_text("[]\n")
    tool.README.write_text(f"before\n{tool.BEGIN}old\n{tool.END}after\n")
    return tmp_path


def test_an_interpreter_is_found_by_its_path_and_taken_once():
    pythons, missing = tool.find_interpreters([sys.executable, sys.executable])
    assert len(pythons) == 1 and pythons[0].exists() and not missing


def test_a_name_that_leads_nowhere_is_told(capsys):
    assert tool.main(["--python", "python3.99", "no-such-python"]) == 2
    assert "Not found: python3.99, no-such-python." in capsys.readouterr().out


def test_an_interpreter_that_does_not_run_is_not_taken(tmp_path, monkeypatch):
    shim = tmp_path / "python3.98"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tool.find_interpreter("python3.98") is None


def test_the_oldest_torch_is_the_oldest_that_is_allowed():
    assert tool.torch_requirement("oldest") == "torch==2.10.*"
    assert tool.torch_requirement("2.11") == "torch==2.11.*" and tool.torch_requirement("newest") == "torch"


def test_results_are_counted_and_a_run_without_any_has_failed(tmp_path):
    (tmp_path / "result.xml").write_text(RESULT)
    assert tool.count_results(tmp_path / "result.xml") == {"passed": 3, "failed": 3, "skipped": 3}
    assert tool.count_results(tmp_path / "none.xml")["failed"] == 1


def test_a_new_run_replaces_the_old_one_of_the_same_releases(written):
    tool.record([entry("3.13.0"), entry(torch="2.15.0"), entry(failed=2)])
    tool.record([entry("3.10.14", "2.10.1")])
    stored = json.loads(tool.RECORD.read_text())
    assert [(e["python"], e["torch"]) for e in stored] == [
        ("3.10.14", "2.10.1"),
        ("3.10.13", "2.15.0"),
        ("3.13.0", "2.10.0+cpu"),
    ]
    text = tool.README.read_text()
    assert text == f"before\n{tool.BEGIN}\n{tool.table(stored)}\n\n{tool.END}after\n"


def test_the_readme_has_what_was_recorded():
    recorded = json.loads(tool.RECORD.read_text())
    assert recorded and tool.table(recorded) in tool.README.read_text(), "run: make test-versions"


def test_what_was_recorded_spans_what_is_allowed():
    combinations = read_tested_versions()
    assert all(each.passed and not each.failed for each in combinations)
    assert any(each.name == "Python 3.10 with torch 2.10" for each in combinations)
    assert {each.python.rpartition(".")[0] for each in combinations} > {"3.10"}
    assert len({each.torch for each in combinations}) > 1


def test_doctor_tells_what_was_tested_and_whether_this_is_among_it(monkeypatch):
    first = read_tested_versions()[0]
    assert describe_tests(first.python, first.torch).endswith("This one: tested")
    assert describe_tests("3.9.1", first.torch).endswith("This one: not tested")
    found = {finding.name: finding.text for finding in examine_machine()}["tested with"]
    assert first.name in found and found.endswith("tested")
    assert f"Python {'.'.join(platform.python_version_tuple()[:2])} with" in found or found.endswith("not tested")
