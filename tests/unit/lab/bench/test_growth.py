"""The benchmark of growth: formulas, summaries, and a short run of both tables."""

import json

import pytest
import torch

from thinwire.cli.main import main
from thinwire.drivers.single import SingleRank
from thinwire_lab.bench import growth_sizes, growth_workers
from thinwire_lab.bench.growth import QUICK, measure_sizes
from thinwire_lab.bench.random_buckets import RandomBuckets, make_layers
from thinwire_lab.bench.scaling import sent_bytes
from thinwire_lab.testbed.network import can_build_network


@pytest.mark.parametrize("numel", (500_000, 10_000_000, 250_000_000))
def test_layers_have_about_as_many_elements_as_wanted(numel):
    layers = make_layers(numel)
    assert sum(layer.numel for layer in layers) == pytest.approx(numel, rel=0.06)
    assert len(layers) >= 8 and len({layer.shape for layer in layers}) == 1


def test_a_step_averages_every_bucket_and_leaves_the_residual():
    layers = make_layers(80_000)
    buckets = RandomBuckets(layers, "ef(topk(density=0.1))", bucket_mb=0.1, seed=3)
    assert len(buckets.buckets) > 2
    assert sorted(name for bucket in buckets.buckets for name in bucket) == sorted(layer.name for layer in layers)
    buckets.fill()
    before = [buffer.clone() for buffer in buckets.buffers]
    assert buckets.run_step(SingleRank(), 0) > 0
    for bucket, buffer, gradients in zip(buckets.buckets, buckets.buffers, before, strict=True):
        residual = torch.cat([buckets.exchanger.states[name].residual.flatten() for name in bucket])
        assert torch.allclose(buffer + residual, gradients)
        assert int(buffer.count_nonzero()) == pytest.approx(0.1 * buffer.numel(), rel=0.05)


@pytest.mark.parametrize("workers", (2, 4, 8))
@pytest.mark.parametrize("composition", ("dense()", "qsgd(bits=4)", "two_hop(qsgd(bits=4))", "topk(density=0.01)"))
def test_the_formula_is_what_a_meter_counts(composition, workers):
    layers = make_layers(1 << 18)
    formula = growth_workers.count_formula_bytes(composition, layers, workers)
    counted = sent_bytes(composition, workers, sum(layer.numel for layer in layers))
    assert formula == pytest.approx(counted, rel=0.03)
    assert growth_workers.count_formula_bytes(f"ef({composition})", layers, workers) == formula


def test_a_composition_without_a_formula_is_refused():
    with pytest.raises(ValueError, match="no formula for 'vote\\(\\)'"):
        growth_workers.count_formula_bytes("vote()", make_layers(1000), 4)


def test_overhead_is_what_a_step_takes_beyond_the_transfer():
    rank = {
        "step_s": [0.1, 0.2, 0.3], "transfer_s": [0.01, 0.01, 0.01], "new_bytes": [0, 2e6, 1e6],
        "gradient_bytes": 10e6, "state_bytes": 10e6, "before_bytes": 5e6, "peak_bytes": 35e6,
    }  # fmt: skip
    slower = rank | {"step_s": [0.11, 0.21, 0.1], "peak_bytes": 36e6}
    row = growth_sizes.summarize("ef(sign())", 2.5, [rank, slower])
    assert (row.step_ms, row.transfer_ms) == (pytest.approx(210), pytest.approx(10))
    assert row.overhead_ms_per_mb == pytest.approx(20)
    assert (row.state_share, row.in_flight_share, row.new_mb_per_step) == (1.0, pytest.approx(1.1), 1.0)


def test_link_use_is_data_over_rate_and_the_time_of_the_slowest_rank():
    ranks = [{"seconds": [1.0, s, 3.0], "data_bytes": 10e6, "wire_bytes": 11e6, "cpu_s": 0.3} for s in (1.5, 1.6)]
    row = growth_workers.summarize("dense()", "100mbit", 9e6, ranks)
    assert (row.workers, row.step_ms, row.link_use, row.cpu_ms) == (2, 1600, pytest.approx(0.5), pytest.approx(300))
    assert (row.formula_mb, row.formula_ms, row.data_mb, row.wire_mb) == (9, pytest.approx(720), 10, 11)


def test_sizes_that_do_not_fit_into_memory_are_left_out(monkeypatch):
    monkeypatch.setattr(growth_sizes, "available_bytes", lambda: 1e6)
    rows, left_out = measure_sizes(QUICK, lambda _: None)
    assert not rows and len(left_out) == len(QUICK.millions) * len(growth_sizes.COMPOSITIONS)
    assert "1 M parameters: left out, needs about 0.0 GB" in left_out[1]


def test_a_quick_run_fills_the_table_of_sizes(tmp_path, capsys):
    file = tmp_path / "growth.json"
    assert main(["bench", "growth", "--quick", "--only", "sizes", "--millions", "1", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    assert figures.keys() == {"sizes"}
    assert [row["composition"] for row in figures["sizes"]] == list(growth_sizes.COMPOSITIONS)
    for row in figures["sizes"]:
        assert row["step_ms"] > 0 and row["transfer_ms"] > 0 and row["state_share"] == pytest.approx(1.0, abs=0.05)
    out = capsys.readouterr()
    assert "overhead" in out.out
    assert "step 1 of 1" in out.err


@pytest.mark.skipif(not can_build_network(), reason="needs root and iproute2")
def test_a_quick_run_fills_the_table_of_workers(tmp_path):
    file = tmp_path / "growth.json"
    assert main(["bench", "growth", "--quick", "--only", "workers", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    assert [row["composition"] for row in figures["workers"]] == list(growth_workers.COMPOSITIONS)
    for row in figures["workers"]:
        assert row["workers"] == 3 and 0 < row["link_use"] < 1
        assert row["data_mb"] == pytest.approx(row["formula_mb"], rel=0.02) and row["wire_mb"] > row["data_mb"]


def test_without_root_the_table_of_workers_is_refused_before_anything_starts(monkeypatch, capsys):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["bench", "growth", "--quick"]) == 2
    out = capsys.readouterr()
    assert "needs root" in out.err and not out.out
