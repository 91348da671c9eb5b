import importlib
import json
import subprocess
import sys

import pytest

from thinwire.cli.main import main
from thinwire.experiments.descent import Stop


def thinwire(*arguments, folder):
    command = [sys.executable, "-m", "thinwire.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=folder)


def test_a_run_leaves_tables_a_result_and_a_report(tmp_path, monkeypatch, capsys):
    e1c = importlib.import_module("thinwire.experiments.named.e1c")
    monkeypatch.setattr(e1c, "ROWS", e1c.ROWS[:3])  # dense, TopK, RandK: all of it would take a minute
    whole = e1c.plan
    monkeypatch.setattr(e1c, "plan", lambda full, data: whole(full, data, Stop(1e-1, 200)))
    assert main(["run", "e1c", "--out", str(tmp_path / "out"), "--json", str(tmp_path / "e1c.json")]) == 0
    printed = capsys.readouterr().out
    assert "TopK" in printed and "dense and Top-k descend without exploding" in printed
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    (table,) = json.loads((tmp_path / "e1c.json").read_text())["tables"]
    assert result["tables"] == [table] and [row[0] for row in table["rows"]] == ["dense", "TopK", "RandK, plain"]
    assert result["command"] == "thinwire run e1c"
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()


def test_an_unknown_experiment_is_refused_with_what_there_is(tmp_path):
    done = thinwire("run", "nonsense", folder=tmp_path)
    assert done.returncode == 2
    assert "demo" in done.stderr and "Traceback" not in done.stderr


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "runs").write_text("a file, not a folder")
    done = thinwire("run", "e1", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("thinwire: ") and "Traceback" not in done.stderr


def test_operators_are_listed_from_the_catalog(capsys, tmp_path):
    assert main(["operators", "--json", str(tmp_path / "o.json")]) == 0
    assert "topk" in capsys.readouterr().out
    assert any(row["part"].startswith("qsgd") for row in json.loads((tmp_path / "o.json").read_text()))


def test_experiments_are_listed(capsys):
    assert main(["list"]) == 0
    assert "e1b" in capsys.readouterr().out


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0 and "thinwire 0." in capsys.readouterr().out
