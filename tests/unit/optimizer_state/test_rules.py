"""The rules that keep an Adam sound: laws over drawn moments, and what happens without each of them."""

import math

import pytest
import torch

from helpers.cases import draw
from helpers.moments_jobs import SHAPES, TEXTS, adam, together
from thinwire.core import DecodeError, Key, Payload, TensorSpec
from thinwire.moments import (
    MomentsConfig,
    PairCompressor,
    apply_floor,
    build_pair_compressor,
    compute_block_means,
    max_update,
    moments_to_text,
    parse_moments,
    restore_v,
    transform_v,
)

MOST = max_update(0.9, 0.999)
KINDS = ("gaussian", "zeros", "one huge", "tiny", "sparse")


def moments(kind, shape=(40, 30), seed=1):
    """m and v that an Adam could have: v is at least (m / MOST)²."""
    m = draw("gaussian", shape, seed=seed)
    v = (m / MOST).square() + draw("gaussian", shape, seed=seed + 1).square() * torch.logspace(-6, 0, shape[-1])
    if kind == "zeros":
        return torch.zeros(2, *shape)
    if kind == "one huge":
        m[0, 0], v[0, 0] = 1e6, 1e13
    if kind == "tiny":
        m, v = m * 1e-12, v * 1e-24
    if kind == "sparse":
        m[::2], v[::2] = 0, 0
    return torch.stack([m, v])


def updates(pair):
    return pair[0].abs() / (pair[1].sqrt() + 1e-8)


@pytest.mark.parametrize("transmit", ("sqrt", "log", "v"))
def test_what_travels_gives_v_again_with_its_sign_and_zero_stays_zero(transmit):
    v = draw("gaussian", (200,)).pow(5) * 1e-6
    v[:3] = 0
    u = transform_v(v, transmit)
    assert torch.equal(u.sign(), v.sign())
    torch.testing.assert_close(restore_v(u, transmit), v, rtol=1e-4, atol=1e-20)


@pytest.mark.parametrize("betas", ((0.9, 0.999), (0.9, 0.95), (0.5, 0.9)))
def test_no_gradients_make_a_larger_update_than_cauchy_and_schwarz_allow(betas):
    most = max_update(*betas)
    reached = 0.0
    for seed in range(20):
        m, v = torch.zeros(50), torch.zeros(50)
        # the worst gradients are those whose weights in m are as their weights in v: g = (β₁/β₂)^k
        worst = torch.tensor([(betas[0] / betas[1]) ** k for k in range(80, -1, -1)])
        for step in range(81):
            g = worst[step] if seed == 0 else draw("gaussian", (50,), seed=100 * seed + step) + seed / 10
            m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        reached = max(reached, float((m.abs() / v.sqrt()).max()))
    assert 0.97 * most < reached <= most * (1 + 1e-5)


def test_betas_without_a_bound_have_no_floor():
    assert max_update(0.999, 0.9) == math.inf
    assert torch.equal(apply_floor(torch.zeros(3), torch.ones(3), math.inf), torch.zeros(3))


def test_the_floor_leaves_true_states_as_they_are():
    _, optimizer = adam(0)
    for state in optimizer.state.values():
        m, v = state["exp_avg"].float(), state["exp_avg_sq"].float()
        assert torch.equal(apply_floor(v, m, 1.001 * MOST), v)


@pytest.mark.parametrize("text", [text for text in TEXTS if text != "dense()"])
@pytest.mark.parametrize("size", (1, 3))
def test_decoded_moments_are_sound(text, size):
    """v >= (m / most)², so no update is larger than Adam's own could be; counters are exact."""
    for ranks in together(size, text, rounds=3)[0]:
        for name in SHAPES:
            m, v = ranks[f"{name}.exp_avg"].double(), ranks[f"{name}.exp_avg_sq"].double()
            slack = 1.02 if name == "half" else 1.0001  # bfloat16 rounds v
            assert bool((v * slack**2 >= (m / MOST).square()).all()) and bool((v >= 0).all()), name
            assert float((m.abs() / (v.sqrt() + 1e-8)).max()) <= slack * MOST
            assert ranks[f"{name}.step"] == 14


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text", [t for t in TEXTS if "(" in t and t.split("(")[0] in ("uniform", "topk", "tensor_train", "svd")]
)
def test_v_is_not_lost_where_there_was_one(text, kind):
    pair, spec = moments(kind), TensorSpec("x", (2, 40, 30))
    way = build_pair_compressor(parse_moments(text))
    decoded = way.decode(way.encode(pair, Key(5)), spec, Key(5))
    assert bool(decoded.isfinite().all())
    assert bool((decoded[1][pair[1] > 0] > 0).all())
    assert kind != "zeros" or not decoded.any()


@pytest.mark.parametrize("kind", KINDS)
def test_top_k_sends_v_at_ms_coordinates_and_the_mean_for_the_rest(kind):
    pair, spec = moments(kind), TensorSpec("x", (2, 40, 30))
    way = PairCompressor(parse_moments("topk(density=0.1)").composition.compressor, block=100)
    payload = way.encode(pair, Key(5))
    m, v = way.decode(payload, spec, Key(5))
    sent = m != 0
    torch.testing.assert_close(m[sent], pair[0][sent])
    torch.testing.assert_close(v[sent], pair[1][sent])
    torch.testing.assert_close(updates(torch.stack([m, v]))[sent], updates(pair)[sent])
    if kind not in ("zeros", "sparse"):
        means = compute_block_means(pair[1], ~sent, 100).repeat_interleave(100).view(40, 30)
        torch.testing.assert_close(v[~sent], means[~sent], rtol=0.02, atol=0)
        alone = len(way.compressor.encode(pair[0], Key(5)).parts[0])
        assert sum(len(part) for part, k in zip(payload.parts, payload.kinds, strict=True) if k == "indices") <= alone


def test_without_the_rules_updates_explode():
    """What each rule prevents, on moments of a wide range."""
    pair, spec = moments("gaussian"), TensorSpec("x", (2, 40, 30))
    pair[0] *= 0.1

    def largest(text, floor):
        way = build_pair_compressor(parse_moments(text))
        m, v = way.decode(way.encode(pair, Key(5)), spec, Key(5))
        v = apply_floor(v, m, MOST) if floor else v
        return float(updates(torch.stack([m, v.clamp(min=0)])).max()), v

    true = float(updates(pair).max())
    bare, _ = largest('moments(uniform(bits=4), transmit="v", mask=false)', False)
    root, _ = largest("moments(uniform(bits=4), mask=false)", False)
    filled, _ = largest("uniform(bits=4)", False)
    sound, _ = largest('moments(uniform(bits=4), transmit="v", mask=false)', True)
    assert bare > 1e4 * true and root > 1e4 * true, "v is zero where m is not"
    assert filled < 100 * true and sound <= MOST * 1.0001
    small = (pair[1] < 0.01 * pair[1].amax()) & (pair[1] > 0.001 * pair[1].amax())
    errors = {}
    for transmit in ("sqrt", "log", "v"):
        _, v = largest(f'moments(uniform(bits=8), transmit="{transmit}", mask=false)', False)
        errors[transmit] = float(((v.clamp(min=0).sqrt() - pair[1].sqrt()) / pair[1].sqrt())[small].abs().mean())
    assert errors["sqrt"] < errors["v"] / 3 and errors["log"] < errors["v"] / 3


def test_texts_are_read_back():
    for text in (*TEXTS, "moments(topk(density=0.1), floor=false, mask=false, counters=false, block=64)"):
        assert parse_moments(moments_to_text(parse_moments(text))) == parse_moments(text)
    assert moments_to_text(parse_moments("moments(uniform(bits=4))")) == "uniform(bits=4)"
    assert parse_moments("uniform()") == MomentsConfig(parse_moments("uniform()").composition)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('moments(uniform(), transmit="cube")', "transmit must be one of sqrt, log, v"),
        ("moments(uniform(), block=0)", "block must be at least 1"),
        ("ring()", "is neither an aggregator nor a compressor"),
        ("moments(uniform(), flor=false)", "no setting 'flor'"),
        ("uniform(bits=99)", "bits must be 2 to 8"),
    ],
)
def test_bad_texts_say_what_would_do(text, says):
    with pytest.raises(ValueError, match=says):
        parse_moments(text)


@pytest.mark.parametrize("text", ("uniform(bits=4)", "topk(density=0.1)", "tensor_train(rank=2)"))
def test_broken_payloads_are_refused(text):
    pair, spec = moments("gaussian"), TensorSpec("x", (2, 40, 30))
    way = build_pair_compressor(parse_moments(text))
    parts = way.encode(pair, Key(5)).parts
    assert way.num_bytes(spec) == pytest.approx(sum(p.nbytes for p in parts), rel=0.05, abs=16)
    bad = parts[-2].clone()
    bad[0] = float("nan")
    for broken in (parts[:-1], parts[1:], (), (*parts[:-2], bad, parts[-1]), (*parts[:-2], bad[1:], parts[-1])):
        with pytest.raises(DecodeError):
            way.decode(Payload(broken), spec, Key(5))
