"""Importance compressors: what they select and send, and bounds that hold for every w or for some."""

import math

import pytest
import torch

from helpers.cases import KINDS, draw
from thinwire import CompositionError, Exchanger, IncompatibleParts, TensorSpec, World, lockstep, parse
from thinwire.catalog import parse_compressor
from thinwire.core import Contract, derive_key, selects_coordinates, takes_importance

KEY = derive_key("importance")
SHAPES = ((1,), (7,), (33, 5), (600,))
OPERATORS = ("impk", "importance_topk", "importance_sampling")


def through(compressor, x, key=KEY):
    return compressor.decode(compressor.encode(x, key), TensorSpec.of("x", x), key)


def some_w(shape, low=0.0, high=2.0, seed=0, dtype=torch.float64):
    """Uniform in the box, a good part of it at the edges."""
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (low + (high - low) * (1.5 * drawn - 0.25)).clamp(low, high).to(dtype)


def cases():
    for shape in SHAPES:
        for kind in KINDS:
            if kind != "one huge":
                for seed in range(3):
                    yield draw(kind, shape, torch.float64, seed), some_w(shape, seed=100 + seed)


@pytest.mark.parametrize("name", OPERATORS)
def test_importance_compressors_select_coordinates_and_take_an_importance(name):
    part = parse_compressor(f"{name}(k=3)")
    assert selects_coordinates(part) and takes_importance(part)
    assert part.with_importance(torch.ones(4)) == part


@pytest.mark.parametrize(
    "text", ["impk(density=0.1)", "importance_topk(density=0.1)", 'impk(density=0.1, weights="plain")']
)
@pytest.mark.parametrize("has_importance", [False, True])
def test_without_importance_or_with_ones_they_equal_top_k(text, has_importance):
    for x, _ in cases():
        part = parse_compressor(text)
        part = part.with_importance(torch.ones(x.shape)) if has_importance else part
        assert torch.equal(through(part, x), through(parse_compressor("topk(density=0.1)"), x))


@pytest.mark.parametrize("k", (1, 5, 60))
def test_impk_with_w_in_one_to_two_keeps_k_of_d_and_has_a_positive_product_with_x(k):
    """|C|^2 >= k/d |x|^2 and <x, C> >= |C|^2 / 2, the basis of the rate of Khafizov (2025)."""
    for x, _ in cases():
        c = through(parse_compressor(f'impk(k={k}, weights="plain")').with_importance(some_w(x.shape, 1.0, 2.0)), x)
        share = min(1, k / x.numel())
        assert c.square().sum() >= share * x.square().sum() * (1 - 1e-12)
        assert (x * c).sum() >= c.square().sum() / 2 * (1 - 1e-12)


@pytest.mark.parametrize(("low", "high"), [(0.5, 1.5), (0.2, 1.9), (0.9, 1.0), (1.0, 2.0)])
def test_impk_contracts_if_w_stays_away_from_zero_and_two(low, high):
    """delta = min(a(2-a), c(2-c)) (a/c)^2 k/d, which is nothing at c = 2."""
    delta = min(low * (2 - low), high * (2 - high)) * (low / high) ** 2 * 0.1
    for x, _ in cases():
        c = through(
            parse_compressor('impk(density=0.1, weights="plain")').with_importance(some_w(x.shape, low, high)), x
        )
        assert (x - c).square().sum() <= (1 - delta) * x.square().sum() * (1 + 1e-12)


@pytest.mark.parametrize("name", OPERATORS)
def test_unscaled_importance_compressors_send_x_and_never_increase_the_norm(name):
    text = f"{name}(density=0.1)" if name != "impk" else 'impk(density=0.1, weights="none")'
    for x, w in cases():
        part = parse_compressor(text).with_importance(w)
        c = through(part, x)
        assert bool(((c == x) | (c == 0)).all()) and c.norm() <= x.norm() + 1e-12
        assert part.select(x.flatten(), KEY).numel() == math.ceil(0.1 * x.numel())


@pytest.mark.parametrize("name", ("impk", "importance_topk"))
def test_clamped_weights_never_increase_the_error_above_x(name):
    for x, w in cases():
        for importance in (w, w * 1e-20, w**8, torch.zeros_like(w)):
            c = through(parse_compressor(f'{name}(density=0.2, weights="clamped")').with_importance(importance), x)
            assert (x - c).norm() <= x.norm() * (1 + 1e-12)


def test_weights_define_the_scaling_of_values():
    x, w = torch.tensor([1.0, -1.0, 2.0, 0.5]), torch.tensor([0.5, 3.0, 0.25, 0.1])
    for weights, sent in {
        "none": [1, -1, 0, 0], "plain": [0.5, -3, 0, 0], "normalized": [2 / 7, -12 / 7, 0, 0], "clamped": [2 / 7, -12 / 7, 0, 0]
    }.items():  # fmt: skip
        c = through(parse_compressor(f'impk(k=2, weights="{weights}")').with_importance(w), x)
        torch.testing.assert_close(c, torch.tensor(sent) * 1.0)  # |w x| = 0.5, 3, 0.5, 0.05: of equals the first
    three = parse_compressor('importance_topk(k=3, weights="clamped")').with_importance(
        torch.tensor([8.0, 0.5, 0.5, 0.0])
    )
    torch.testing.assert_close(through(three, torch.ones(4)), torch.tensor([2.0, 1 / 6, 1 / 6, 0.0]))  # 8/3 became 2


def test_values_are_scaled_before_they_are_encoded():
    part = parse_compressor('impk(k=1, weights="plain", values=nearest_power2())').with_importance(
        torch.tensor([1.5, 1.0])
    )
    assert through(part, torch.tensor([1.2, 1.0])).tolist() == [2.0, 0.0]  # 1.8; rounded before it would be 1.5


def test_importance_topk_takes_the_largest_w_and_among_equals_the_largest_x():
    x, w = torch.tensor([1.0, -5.0, 3.0, 4.0, 9.0]), torch.tensor([2.0, 1.0, 2.0, 2.0, 0.0])
    choose = parse_compressor("importance_topk(k=2)").with_importance(w).select
    assert choose(x, KEY).tolist() == [2, 3]
    assert parse_compressor("importance_topk(k=4)").with_importance(w).select(x, KEY).tolist() == [0, 1, 2, 3]
    assert parse_compressor("importance_topk(k=2)").with_importance(torch.zeros(5)).select(x, KEY).tolist() == [1, 4]


def test_importance_topk_with_a_pool_selects_among_the_largest_x():
    x, w = torch.tensor([1.0, -5.0, 3.0, 4.0, 9.0]), torch.tensor([9.0, 1.0, 8.0, 2.0, 0.0])
    assert parse_compressor("importance_topk(k=1, pool_factor=2)").with_importance(w).select(x, KEY).tolist() == [1]
    assert parse_compressor("importance_topk(k=2, pool_factor=2)").with_importance(w).select(x, KEY).tolist() == [2, 3]
    assert parse_compressor("importance_topk(k=1)").with_importance(w).select(x, KEY).tolist() == [0]


def test_importance_sampling_draws_in_proportion_to_w_and_zeros_last():
    w, draws = torch.tensor([1.0, 2.0, 0.0, 5.0]), 4000
    part = parse_compressor("importance_sampling(k=1)").with_importance(w)
    counts = torch.zeros(4)
    for i in range(draws):
        counts[part.select(torch.ones(4), derive_key(i))] += 1
    assert counts[2] == 0
    assert bool(((counts / draws - w / 8).abs() < 4 * (0.25 / draws) ** 0.5).all())
    assert parse_compressor("importance_sampling(k=4)").with_importance(w).select(torch.ones(4), KEY).tolist() == [
        0,
        1,
        2,
        3,
    ]


def test_poisson_sampling_is_unbiased_with_the_stated_variance_also_where_w_is_zero():
    x, w = draw("gaussian", (40,), torch.float64), some_w((40,), seed=5) ** 3
    part = parse_compressor("importance_sampling(k=10, poisson=true, uniform_fraction=0.2)").with_importance(w)
    assert bool((w == 0).any()) and part.probabilities(x).min() == pytest.approx(0.2 * 10 / 40)
    ys = torch.stack([through(part, x, derive_key("poisson", i)) for i in range(6000)])
    spread = ys.std(0) / math.sqrt(len(ys))
    assert bool(((ys.mean(0) - x).abs() <= 5 * spread + 1e-9).all())
    p = part.probabilities(x)
    expected = float(((1 / p - 1) * x.square()).sum())
    assert float((ys - x).square().sum(1).mean()) == pytest.approx(expected, rel=0.05)
    assert expected <= part.contract(TensorSpec.of("x", x)).omega * float(x.square().sum())
    assert float((ys != 0).sum(1).double().mean()) == pytest.approx(float(p.sum()), rel=0.02)


def test_the_contract_holds_for_every_importance():
    spec = TensorSpec("x", (100,))
    for text in (
        "impk(k=10)",
        "importance_topk(k=10)",
        "importance_sampling(k=10)",
        "importance_sampling(k=10, poisson=true, values=sign())",
    ):
        assert parse_compressor(text).contract(spec) == Contract()
    assert parse_compressor("importance_sampling(k=10, poisson=true, uniform_fraction=0.5)").contract(
        spec
    ).omega == pytest.approx(19)


def test_wrong_settings_are_refused():
    for text, words in (
        ('impk(k=1, weights="some")', "weights must be one of none, plain, normalized, clamped"),
        ("importance_topk(k=1, pool_factor=0.5)", "pool_factor must be at least 1"),
        ("importance_sampling(k=1, uniform_fraction=0.0)", "uniform_fraction must be in"),
        ("impk()", "give either density or k"),
    ):
        with pytest.raises(CompositionError, match=words):
            parse_compressor(text)
    with pytest.raises(CompositionError, match="has no setting 'importance'"):
        parse_compressor("impk(k=1, importance=1)")


def test_w_of_another_layer_is_refused():
    with pytest.raises(IncompatibleParts, match="ImpK was given the importance of 5 coordinates, the tensor has 6"):
        parse_compressor("impk(k=1)").with_importance(torch.ones(5)).encode(torch.ones(6), KEY)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16, torch.float64), ids=str)
def test_finite_in_gives_finite_out_for_large_and_tiny_w(dtype):
    for text in ('impk(density=0.3, weights="plain")', 'importance_topk(density=0.3, weights="normalized")',
                 "importance_sampling(density=0.3)", "importance_sampling(density=0.3, poisson=true)"):  # fmt: skip
        for kind in KINDS:
            for scale in (0.0, 1e-38, 1.0, 1e30):
                x = draw(kind, (9, 5), dtype)
                y = through(parse_compressor(text).with_importance(some_w((9, 5), dtype=torch.float32) * scale), x)
                assert bool(y.isfinite().all()) and y.dtype == dtype


COMPOSITIONS = (
    'ef(impk(density=0.2, weights="plain"))',
    "ef(importance_topk(density=0.2))",
    'ef(two_hop(impk(density=0.2, weights="normalized")))',
    "ef(importance_sampling(density=0.2))",
    'scam(impk(density=0.2, weights="plain"))',
    'scam(two_hop(impk(density=0.2, weights="clamped")))',
    'scam(importance_topk(density=0.2, weights="normalized", pool_factor=2.0))',
    'ef(scheduled(impk(density=0.5), start=0.5, end=0.1, steps=10))',
    'ef(switch(impk(density=0.2), dense()))',
)  # fmt: skip


@pytest.mark.parametrize("text", COMPOSITIONS)
@pytest.mark.parametrize("size", (1, 3))
def test_error_feedback_loses_nothing_when_ranks_have_different_importances(text, size):
    """Over ranks, sum of values + mean residual = sum of the mean tensors."""
    spec = TensorSpec("w", (5, 7), torch.float64)
    exchangers = [Exchanger([spec], parse(text)) for _ in range(size)]
    expected = sent = torch.zeros(spec.shape, dtype=torch.float64)
    for step in range(60):
        for rank, exchanger in enumerate(exchangers):
            if step % 10 == 0:
                exchanger.importance["w"] = some_w(spec.shape, 0.1, 1.9, seed=step + rank)
        tensors = [{"w": draw("gaussian", spec.shape, torch.float64, 10 * step + r)} for r in range(size)]
        pairs = zip(exchangers, tensors, strict=True)
        outs = lockstep([e.run_step(t, step, World(r, size)) for r, (e, t) in enumerate(pairs)])
        assert all(torch.equal(out["w"], outs[0]["w"]) for out in outs)
        expected, sent = expected + sum(t["w"] for t in tensors) / size, sent + outs[0]["w"]
    residual = sum(e.states["w"].residual for e in exchangers) / size
    torch.testing.assert_close(sent + residual, expected, rtol=1e-9, atol=1e-9)


def test_two_hop_scales_once_by_the_importance_of_the_whole_layer():
    spec, size = TensorSpec("w", (11,), torch.float64), 3
    for weights in ("plain", "normalized"):
        exchangers = [Exchanger([spec], parse(f'two_hop(impk(k=11, weights="{weights}"))')) for _ in range(size)]
        tensors = [draw("gaussian", (11,), torch.float64, r) for r in range(size)]
        ws = [some_w((11,), 0.5, 1.5, seed=r) for r in range(size)]
        for exchanger, w in zip(exchangers, ws, strict=True):
            exchanger.importance["w"] = w
        outs = lockstep(
            [e.run_step({"w": t}, 0, World(r, size)) for r, (e, t) in enumerate(zip(exchangers, tensors, strict=True))]
        )
        scales = [1.0 if weights == "plain" else 11 / float(w.sum()) for w in ws]
        expected = sum(s * w * t for s, w, t in zip(scales, ws, tensors, strict=True)) / size
        torch.testing.assert_close(outs[1]["w"], expected)
