"""`python -m thinwire`, and `--json -`: the figures on standard output, everything else on standard error."""

import argparse
import json
import subprocess
import sys

import pytest

from thinwire.cli import main as program
from thinwire.cli.json_output import STDOUT, json_to_stdout
from thinwire.cli.main import main

LAB = {
    "name": "small",
    "task": {"name": "logistic", "batch": 16},
    "steps": 2,
    "log_every": 1,
    "workers": 2,
    "methods": {"dense": "dense()"},
}


def json_parsers(parser):
    """All commands that take --json."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from json_parsers(inner)
        elif "--json" in action.option_strings:
            yield parser.prog, action


def test_python_m_thinwire_is_the_program():
    done = subprocess.run([sys.executable, "-m", "thinwire", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout[:9]) == (0, "thinwire ")


@pytest.mark.parametrize("command", ["list", "parts"])
def test_figures_go_to_standard_output_and_tables_to_standard_error(command, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([command, "--json", "-"]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)
    assert len(printed.err) > 100
    assert not list(tmp_path.iterdir()), "no file is called -"


def test_a_run_prints_nothing_but_json(capfd, tmp_path):
    (tmp_path / "lab.json").write_text(json.dumps(LAB))
    assert main(["run", str(tmp_path / "lab.json"), "--out", str(tmp_path / "out"), "--json", "-"]) == 0
    printed = capfd.readouterr()
    assert [row["label"] for row in json.loads(printed.out)["rows"]] == ["dense"]
    assert "Report: " in printed.err
    for command in (["show", str(tmp_path / "out")], ["compare", str(tmp_path / "out"), str(tmp_path / "out")]):
        assert main([*command, "--json", "-"]) == 0
        assert json.loads(capfd.readouterr().out)


def test_what_commands_start_prints_on_standard_error_too(capfd, tmp_path):
    code = "print('of a worker')"
    assert main(["testbed", "run", "--loopback", "--json", "-", "--", sys.executable, "-c", code]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)["exit_code"] == 0 and "of a worker" in printed.err


def test_figures_written_before_an_interrupt_are_printed(capfd):
    options = argparse.Namespace(json=STDOUT)
    with pytest.raises(KeyboardInterrupt), json_to_stdout(options):
        options.json.write_text("[1]\n")
        raise KeyboardInterrupt
    assert capfd.readouterr().out == "[1]\n"


def test_a_command_that_fails_prints_no_figures(capfd):
    assert main(["show", "nowhere", "--json", "-"]) == 2
    printed = capfd.readouterr()
    assert printed.out == "" and "nowhere" in printed.err


def test_every_command_with_figures_says_what_a_dash_means():
    commands = dict(json_parsers(program.parser()))
    assert len(commands) >= 12
    assert all("-: to standard output" in action.help for action in commands.values())
