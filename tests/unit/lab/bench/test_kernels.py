"""The benchmark runs and writes what it shows; its figures are nobody's promise."""

import json

import torch

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


def test_one_thread_is_measured_beside_several(tmp_path, capsys):
    file, threads = tmp_path / "threads.json", torch.get_num_threads()
    command = ["bench", "kernels", "--mb", "0.05", "--repetitions", "1", "--threads", "3", "--json", str(file)]
    assert main(command) == 0 and torch.get_num_threads() == threads
    written = json.loads(file.read_text())
    assert (written["mb"], written["threads"], written["unit"]) == (0.05, 3, "ms")
    assert {"torch: copy", "add, saturated", "top-k 1 %", "sign decode"} <= {row["kernel"] for row in written["rows"]}
    assert all(row["one_ms"] > 0 and row["several_ms"] > 0 and row["quotient"] > 0 for row in written["rows"])
    assert "3 threads" in capsys.readouterr().out


def test_fewer_than_two_threads_are_refused(capsys):
    assert main(["bench", "kernels", "--threads", "1"]) == 2
    assert "--threads must be at least 2, got 1" in capsys.readouterr().err
