"""Folders and results of earlier versions: results are read with the present keys, runs are not resumed."""

import json

import pytest

from thinwire.cli.main import main
from thinwire_lab.measuring.folder import FORMAT, RunFolder
from thinwire_lab.measuring.result_format import upgrade_result

OLD = {
    "name": "x",
    "about": "text",
    "target": {"measure": "loss", "value": 0.5},
    "runs": [{"adapting": {}, "looking_bytes": 3, "plans": [{"step": 0, "layers": {"a": {"entry": "topk(k=1)"}}}]}],
}
NEW = {
    "name": "x",
    "description": "text",
    "target": {"metric": "loss", "value": 0.5},
    "runs": [
        {"controller": {}, "measurement_bytes": 3, "plans": [{"step": 0, "layers": {"a": {"option": "topk(k=1)"}}}]}
    ],
}


def test_an_older_result_gets_the_present_keys_and_a_present_one_is_unchanged():
    assert upgrade_result(OLD) == NEW and upgrade_result(NEW) == NEW
    assert upgrade_result({"name": "x", "target": None}) == {"name": "x", "target": None}


def test_a_run_of_an_earlier_format_is_not_resumed(tmp_path, capsys):
    folder = RunFolder.create(tmp_path / "run", {"named": "demo", "full": False, "data": None}, "thinwire run demo")
    folder.check_format()
    facts = folder.read("about.json")
    assert facts.pop("format") == FORMAT
    (folder.path / "about.json").write_text(json.dumps(facts))
    assert main(["resume", str(folder.path)]) == 2
    assert f"has format 1, this version of thinwire resumes format {FORMAT}" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "name"), [("e1", "importance-mushrooms"), ("e8", "layerwise-adaptive")])
def test_the_list_has_names_and_codes(capsys, code, name):
    assert main(["list"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(name))
    assert line.split()[1] == code
