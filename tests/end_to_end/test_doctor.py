import json
import os
import socket
import subprocess
import sys

from thinwire import self_test
from thinwire.cli.main import main


def test_doctor_alone_tries_two_processes(tmp_path, capsys):
    assert main(["doctor", "--json", str(tmp_path / "doctor.json")]) == 0
    printed = capsys.readouterr().out
    assert "All checks passed" in printed and "self-test" in printed
    told = json.loads((tmp_path / "doctor.json").read_text())
    assert told["well"] and any("Mbit/s" in finding["text"] for finding in told["findings"])


def test_what_is_wrong_is_named_and_told_by_the_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(
        self_test, "examine_here", lambda: [self_test.Finding("self-test", "rank 1 of 2 failed", False)]
    )
    assert main(["doctor"]) == 1
    assert "✗ self-test: rank 1 of 2 failed" in capsys.readouterr().out


def test_under_torchrun_the_actual_group_is_examined(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "thinwire.cli.main", "doctor"]
    ranks = [
        subprocess.Popen(
            command, env=os.environ | common | {"RANK": str(r)}, cwd=tmp_path, text=True, stdout=subprocess.PIPE
        )
        for r in range(2)
    ]
    told = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert "rule of thumb" in told[0] and "link 1 to 0" in told[0] and not told[1]
