import json
import subprocess
import sys

import pytest

from thinwire.cli.main import main


def thinwire(*arguments, folder):
    command = [sys.executable, "-m", "thinwire.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=folder)


def test_e1_gives_the_published_figures(tmp_path):
    done = thinwire("run", "e1-topk", "--json", "e1.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "iterations: 1,126" in done.stdout and "legacy_bits: 111,178" in done.stdout
    result = json.loads((tmp_path / "runs" / "e1-topk" / "result.json").read_text())
    assert result["found"]["iterations"] == 1126 and result["found"]["legacy_bits"] == 111_178
    assert json.loads((tmp_path / "e1.json").read_text())["rows"][0]["composition"].startswith("topk(k=22")
    assert "<svg" in (tmp_path / "runs" / "e1-topk" / "report.html").read_text()


def test_an_unknown_experiment_is_refused_with_what_there_is(tmp_path):
    done = thinwire("run", "nonsense", folder=tmp_path)
    assert done.returncode == 2
    assert "demo" in done.stderr and "Traceback" not in done.stderr


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "runs").write_text("a file, not a folder")
    done = thinwire("run", "e1-topk", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("thinwire: ") and "Traceback" not in done.stderr


def test_operators_are_listed_from_the_catalog(capsys, tmp_path):
    assert main(["operators", "--json", str(tmp_path / "o.json")]) == 0
    assert "topk" in capsys.readouterr().out
    assert any(row["part"].startswith("qsgd") for row in json.loads((tmp_path / "o.json").read_text()))


def test_experiments_are_listed(capsys):
    assert main(["list"]) == 0
    assert "e1-topk" in capsys.readouterr().out


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0 and "thinwire 0." in capsys.readouterr().out
