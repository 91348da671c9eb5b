"""After many bad steps the error says what was seen of loss scales and of float16, before it speaks of the rate."""

import pytest
import torch

from helpers import report_jobs as jobs


def test_a_huge_scale_is_named(pool):
    for kind, text, warned in pool.run(2, jobs.scale_too_large, True, 2.0**40):
        assert kind == "NonFiniteError" and "3 consecutive steps" in text
        assert "scale is 2^38 and still decreasing" in text and "init_scale=65536" in text
        assert "learning rate" not in text and not warned


def test_a_small_scale_is_hardly_the_cause(pool):
    for _, text, _ in pool.run(2, jobs.scale_too_large, True, 64.0):
        assert "scale is 16" in text and "Lower the learning rate" in text


def test_a_forgotten_scaler_is_missed_at_the_first_bad_step_and_in_the_error(pool):
    for _, text, warned in pool.run(2, jobs.scale_too_large, False, 2.0**40):
        assert "A GradScaler with scale 2^38 is in use" in text and "scaler=scaler" in text
        assert "init_scale=65536" in text
        assert len(warned) == 1 and "scaler=scaler" in warned[0]


@pytest.mark.parametrize(
    ("autocast", "dtype", "word"),
    [
        (True, torch.float32, "autocast(float16) and no GradScaler is in use"),
        (False, torch.float16, "Some parameters are float16"),
        (False, torch.float32, "Lower the learning rate"),
    ],
    ids=str,
)
def test_without_any_scaler_float16_is_named(pool, autocast, dtype, word):
    for text in pool.run(2, jobs.bad_without_scaler, autocast, dtype):
        assert word in text
        assert ("scaler=scaler" in text) == (word != "Lower the learning rate")


def test_local_advises_alike(pool):
    for text in pool.run(2, jobs.bad_rounds_under_autocast):
        assert "2 consecutive rounds" in text and "autocast(float16)" in text and "hooks=False" in text
