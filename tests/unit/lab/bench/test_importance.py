"""The benchmark runs and prints what it should; its figures are nobody's promise."""

import torch

from thinwire_lab.bench import importance


def test_a_refresh_is_measured_in_training_steps(capsys):
    threads = torch.get_num_threads()
    try:
        importance.main(["--width", "2", "--batch", "2", "--steps", "2", "--times", "1"])
    finally:
        torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9 and lines[2].startswith("refresh ") and lines[2].endswith("training steps")
