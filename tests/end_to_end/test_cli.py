import importlib
import json
import subprocess
import sys

import pytest

from thinwire.cli.main import main
from thinwire_lab.published.descent import StopRule


def thinwire(*arguments, folder):
    command = [sys.executable, "-m", "thinwire.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=folder)


def test_a_run_leaves_tables_a_result_and_a_report(tmp_path, monkeypatch, capsys):
    quadratic = importlib.import_module("thinwire_lab.published.importance_quadratic")
    monkeypatch.setattr(quadratic, "ROWS", quadratic.ROWS[:3])  # dense, TopK, RandK: all of it would take a minute
    whole = quadratic.build_plan
    monkeypatch.setattr(quadratic, "build_plan", lambda full, data: whole(full, data, StopRule(1e-1, 200)))
    assert main(["run", "e1c", "--out", str(tmp_path / "out"), "--json", str(tmp_path / "figures.json")]) == 0
    printed = capsys.readouterr().out
    assert "TopK" in printed and "dense and Top-k descend without diverging" in printed
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    (table,) = json.loads((tmp_path / "figures.json").read_text())["tables"]
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
    assert main(["parts", "--json", str(tmp_path / "o.json")]) == 0
    assert "topk" in capsys.readouterr().out
    assert any(row["part"].startswith("qsgd") for row in json.loads((tmp_path / "o.json").read_text()))


def test_experiments_are_listed(capsys):
    assert main(["list"]) == 0
    assert "importance-overlap" in capsys.readouterr().out


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0 and "thinwire 0." in capsys.readouterr().out


SMALL = """
steps = 6
log_every = 2
workers = 2
seeds = [1, 2]
task = "logistic"
optimizer = { lr = "1/L" }
[methods]
dense = "dense()"
"EF(Top-k)" = "ef(topk(density=0.1))"
"""


def test_a_file_is_run_shown_compared_reported_and_resumed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(SMALL)
    assert main(["run", "mine.toml", "--tensorboard", "events", "--json", "first.json"]) == 0
    assert "runs/mine/report.html" in capsys.readouterr().out
    (table,) = json.loads((tmp_path / "first.json").read_text())["tables"]
    assert [row[0] for row in table["rows"]] == ["dense", "EF(Top-k)"] and all(row[1] < 0.5 for row in table["rows"])
    assert len(list(tmp_path.glob("events/*--seed*/events*"))) == 4
    assert main(["run", "runs/mine/config.json", "--out", "again"]) == 0
    capsys.readouterr()
    assert main(["compare", "runs/mine", "again", "--json", "c.json"]) == 0
    assert {row[-1] for row in json.loads((tmp_path / "c.json").read_text())["rows"]} == {"+0.00 %"}
    capsys.readouterr()
    assert main(["show", "again", "--json", "s.json"]) == 0
    assert "EF(Top-k)" in capsys.readouterr().out and (tmp_path / "s.json").exists()
    assert main(["report", "again", "--figures", "--png", "--markdown", "page.md"]) == 0
    assert "| EF(Top-k) | " in (tmp_path / "page.md").read_text() and "±" in (tmp_path / "page.md").read_text()
    assert {file.suffix for file in (tmp_path / "again" / "figures").iterdir()} == {".svg", ".csv", ".png"}
    (tmp_path / "again" / "result.json").unlink()
    assert main(["show", "again"]) == 2 and "thinwire resume again" in capsys.readouterr().err
    assert main(["resume", "again"]) == 0 and (tmp_path / "again" / "result.json").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("stepps = 3\n", "did you mean 'steps'"),
        ('link = "100mbit"\n', "needs driver"),
        ("seeds = 3\n", "seeds"),
        ("= 3\n", "bad.toml"),
        ('task = "logistics"\n', "did you mean 'logistic'"),
    ],
)
def test_a_bad_config_is_one_line_before_anything_starts(tmp_path, monkeypatch, capsys, change, words):
    text = change + "\n".join(line for line in SMALL.splitlines() if line.split("=")[0] != change.split("=")[0])
    (tmp_path / "bad.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "bad.toml"]) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "runs").exists()
