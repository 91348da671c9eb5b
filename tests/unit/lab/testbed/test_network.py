import os

import pytest

from thinwire.cli.main import main
from thinwire_lab.testbed.network import Host, burst_bytes, explain_unavailable, loopback_network, network, rate_bits


@pytest.mark.parametrize(
    ("text", "bits"),
    [("100mbit", 1e8), ("1gbit", 1e9), ("500kbit", 5e5), ("1.5mbit", 1.5e6), ("none", None), ("lo", None)],
)
def test_a_rate_is_read_as_tc_reads_it(text, bits):
    assert rate_bits(text) == bits


@pytest.mark.parametrize("text", ["", "100", "100mbps", "fast", "0mbit", "-1mbit", "1kbit", "1 gbit", "10mbit; true"])
def test_what_is_no_rate_is_refused_with_what_would_do(text):
    with pytest.raises(ValueError, match="100mbit"):
        rate_bits(text)


def test_a_burst_is_short_in_time_and_holds_what_passes_at_once():
    assert burst_bytes(1e8) == 6_250 and burst_bytes(1e9) == 131_072  # the measured ones
    for bits in (1e4, 1e6, 1e7, 2e8, 3e8, 1e9, 1e10, 1e11):
        burst = burst_bytes(bits)
        assert burst >= (2 * 1514 if bits <= 2e8 else 65_536 + 66)
        assert burst / (bits / 8) < 2e-3 or burst == 3100, "longer than a short message"


def test_a_command_runs_in_its_namespace_or_as_it_is():
    assert Host("ns", "eth0", "10.77.0.1").wrap_command("true") == ["ip", "netns", "exec", "ns", "true"]
    assert Host("", "lo", "127.0.0.1").wrap_command("true") == ["true"]


@pytest.mark.parametrize("workers", [0, -1, 251])
def test_numbers_of_workers_that_no_network_holds_are_refused(workers):
    for build in (network, loopback_network):
        with pytest.raises(ValueError, match="1 to 250"), build(workers):
            pass


def test_without_root_one_line_says_so_and_offers_loopback(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["testbed", "run", "--rate", "100mbit", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert "root" in said and "--loopback" in said and said.count("\n") == 1
    assert "root" in explain_unavailable()
    assert main(["testbed", "check"]) == 2 and "root" in capsys.readouterr().err
    assert main(["verify-wire", "dense()"]) == 2 and "root" in capsys.readouterr().err


def test_loopback_needs_no_root_and_does_not_claim_to_be_shaped_or_counted(monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert (
        main(["testbed", "run", "--loopback", "--json", str(tmp_path / "o.json"), "--", "sh", "-c", "echo $RANK"]) == 0
    )
    out, said = capfd.readouterr()
    assert out == "0\n" and "not shaped" in said and "Bytes are not counted" in said
    assert main(["testbed", "run", "--loopback", "--rate", "1gbit", "--", "true"]) == 2
    assert "is not shaped and cannot have --rate" in capfd.readouterr().err


def test_a_missing_or_unknown_command_is_one_line(capsys):
    assert main(["testbed", "run", "--loopback"]) == 2
    assert "no command given" in capsys.readouterr().err
    assert main(["testbed", "run", "--loopback", "--", "no-such-program"]) == 2
    assert "'no-such-program'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--rate", "fast"], ["--workers", "0"], ["--workers", "two"], ["--workers", "251"]]
)
def test_bad_options_are_refused_with_what_would_do(arguments, capsys):
    commands = [["testbed", "run", *arguments, "--", "true"]]
    commands += [["verify-wire", "dense()", *arguments]] if "--workers" in arguments else []
    for command in commands:
        try:
            code = main(command)
        except SystemExit as refused:
            code = refused.code
        said = capsys.readouterr().err
        assert code == 2 and f"got {arguments[1]}" in said.replace("'", "") and arguments[0] in said
