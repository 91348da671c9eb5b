"""The benchmark runs and writes what it shows; its figures are nobody's promise."""

import json

from thinwire.cli.main import main


def test_kernels_are_measured_in_copies(tmp_path, capsys):
    file = tmp_path / "kernels.json"
    assert main(["bench", "kernels", "--mb", "0.05", "--repetitions", "1", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    assert figures["mb"] == 0.05 and figures["unit"] == "copies"
    shown = capsys.readouterr().out
    for row in figures["rows"]:
        assert row["native"] > 0 and row["reference"] > 0
        assert row["kernel"][:12] in shown


def test_a_size_that_cannot_be_is_refused(capsys):
    assert main(["bench", "kernels", "--mb", "0"]) == 2
    assert "--mb must be in (0, 4000]" in capsys.readouterr().err
