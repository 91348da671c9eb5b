"""Complex parameters travel as pairs of reals."""

import pytest
import torch

from helpers import report_jobs as jobs
from thinwire.core import TensorSpec
from thinwire.integrations.complex_layers import as_real, as_real_spec, restore_complex

EF_TOPK = "ef(topk(density=0.05))"


def test_a_pair_of_reals_is_a_view():
    tensor = torch.zeros(3, dtype=torch.complex64)
    as_real(tensor)[1, 1] = 2.0
    assert tensor[1] == 2j and restore_complex(as_real(tensor), tensor)[1] == 2j
    assert as_real_spec(TensorSpec.of("a", tensor)) == TensorSpec.of("a", as_real(tensor))
    assert as_real(tensor.conj())[1, 1] == -2.0
    real = torch.zeros(3)
    assert as_real(real) is real and restore_complex(real, real) is real


@pytest.mark.parametrize("ddp", ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.004}), ids=("", "buckets"))
def test_dense_training_is_that_of_plain_ddp(pool, ddp):
    plain = pool.run(2, jobs.complex_ddp, "dense()", ddp, False)
    for (expected, _), (ours, report) in zip(plain, pool.run(2, jobs.complex_ddp, "dense()", ddp), strict=True):
        for name, weight in expected.items():
            torch.testing.assert_close(weight, ours[name])
        assert "complex, sent as pairs of reals" in report


@pytest.mark.parametrize("composition", (EF_TOPK, "ef(powersgd(rank=2))", "qsgd(bits=4)"))
def test_compressed_replicas_stay_equal(pool, composition):
    (first, report), (second, _) = pool.run(2, jobs.complex_ddp, composition)
    assert all(torch.equal(first[name], second[name]) for name in first)
    lines = {line.split()[0]: line for line in report.splitlines()}
    assert lines["modes"].endswith("a step  complex, sent as pairs of reals")
    assert lines["shift"].endswith("dense: vector (bias, norm); complex, sent as pairs of reals")


def test_a_nan_in_an_imaginary_part_costs_one_step(pool):
    assert pool.run(2, jobs.complex_bad_step) == [(True, True, True, 1)] * 2


def test_a_resumed_run_goes_on_bit_for_bit(pool):
    assert pool.run(2, jobs.complex_resume) == [True, True]


def test_drifted_complex_weights_are_healed(pool):
    (first, resynced_tensors), (second, _) = pool.run(2, jobs.complex_resync)
    assert first == second and resynced_tensors == 1


@pytest.mark.parametrize(
    "options",
    (
        {"sync_every": 3, "composition": EF_TOPK},
        {"sync_every": 1, "payload": "gradients", "composition": EF_TOPK},
        {"sync_every": 2, "payload": "weights", "overlap": True},
        {"sync_every": 3, "composition": "gossip(identity(), ring())"},
    ),
    ids=("deltas", "gradients", "weights", "gossip"),
)
def test_local_training_carries_complex_weights(pool, options):
    results = pool.run(2, jobs.complex_local, options)
    assert results[0][0] == results[1][0]
    for _, losses, moved, report, _ in results:
        assert moved and torch.tensor(losses).isfinite().all()
        assert "complex, sent as pairs of reals" in report
    assert torch.equal(results[0][4], results[1][4])
