"""Matrices sent as factors: svd, rsvd, projection."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.cases import KINDS, draw
from helpers.other_cpu import digest, ordinary_product, run_elsewhere
from thinwire import CompositionError, Exchanger, Meter, TensorSpec, World, lockstep, parse
from thinwire.catalog import parse_compressor
from thinwire.compressors.factored import balance_scales
from thinwire.compressors.projection import draw_directions
from thinwire.compressors.randomized_svd import draw_normal, randomized_svd
from thinwire.compressors.subspaces import choose_matrix_rank, gram_matrix, leading_singular_vectors
from thinwire.compressors.svd import truncated_svd
from thinwire.core import Payload, derive_key
from thinwire.wire import as_bytes, from_bytes

KEY = derive_key("low rank")
SHAPES = ((2, 2), (8, 14), (14, 8), (5, 60), (60, 5), (31, 33))


def through(text, x, key=KEY):
    part = parse_compressor(text)
    return part.decode(part.encode(x, key), TensorSpec.of("x", x), key)


def energy(x):
    return float(x.double().square().sum())


def lost(text, x, key=KEY):
    return energy(x.double() - through(text, x, key).double()) / energy(x)


def kind_of(text, x):
    return parse_compressor(text).encode(x, KEY).kinds[-1]


def with_spectrum(values, m, p, seed=0, dtype=torch.float32):
    """A matrix with these singular values and random directions."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q for n in (m, p))
    count = len(values)
    return (left[:, :count] * torch.tensor(values, dtype=torch.float64) @ right[:count]).to(dtype)


# truncated SVD


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_svd_loses_exactly_the_dropped_singular_values(shape, dtype):
    x = draw("gaussian", shape, dtype)
    values = torch.linalg.svdvals(x.double()).square()
    for rank in range(1, min(shape) + 1):
        left, right = truncated_svd(x, rank)
        assert (left.shape, right.shape) == ((rank, shape[0]), (rank, shape[1]))
        error = energy(x - (left.T @ right).to(dtype))
        assert error == pytest.approx(float(values[rank:].sum()), rel=1e-5, abs=1e-9)


def test_full_rank_is_sent_dense_and_exact():
    x = draw("gaussian", (14, 8))
    left, right = truncated_svd(x, 8)
    torch.testing.assert_close((left.T @ right).float(), x, rtol=0, atol=1e-5)
    for text in ("svd(rank=8)", "svd(rank=100)", "rsvd(rank=8)", "projection(rank=14)", "projection(rank=100)"):
        assert kind_of(text, x) == "dense"
        assert torch.equal(through(text, x), x)


@pytest.mark.parametrize("text", ["svd(rank=3)", "rsvd(rank=3)", "rsvd(rank=3, oversampling=0, iterations=0)"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-13)], ids=str)
def test_a_matrix_of_low_rank_is_decoded_exactly(text, dtype, tolerance):
    for values in ([3.0, 2.0, 1.0], [1.0, 1e-2, 1e-4], [5.0], []):
        x = with_spectrum(values, 20, 30, dtype=dtype)
        assert kind_of(text, x) == "factors"
        assert float((through(text, x) - x).abs().max()) <= tolerance * max(1.0, float(x.abs().max()))


@pytest.mark.parametrize("rank", [1, 3])
def test_the_contraction_is_tight_where_all_singular_values_are_equal(rank):
    x = with_spectrum([1.0] * 12, 12, 20)
    for text in (f"svd(rank={rank})", f"rsvd(rank={rank})"):
        assert parse_compressor(text).contract(TensorSpec.of("x", x)).delta == rank / 12
        assert lost(text, x) == pytest.approx(1 - rank / 12, abs=1e-6)


@pytest.mark.parametrize("text", ["svd(rank=2)", "rsvd(rank=2)", "projection(rank=2, scaled=false)"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_decoded_tensor_and_the_error_are_orthogonal(text, kind):
    """|x|^2 = |x - y|^2 + |y|^2, at any scale."""
    for shape in ((14, 8), (8, 14), (112,), (6, 3, 3, 3)):
        x = draw(kind, shape)
        y = through(text, x).double()
        x = x.double() / (float(x.abs().max()) or 1.0)
        y = y / (float(draw(kind, shape).abs().max()) or 1.0)
        assert energy(x - y) + energy(y) == pytest.approx(energy(x), rel=1e-5)


@pytest.mark.parametrize("text", ["svd(rank=2)", "rsvd(rank=2)"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2**-9), (torch.bfloat16, 2**-6)], ids=str)
def test_half_precision_costs_its_rounding_and_no_more(text, dtype, tolerance):
    for scale in (1.0, 1e-6 if dtype == torch.float16 else 1e-36, 2e4 if dtype == torch.float16 else 1e38):
        exact = with_spectrum([1.0, 0.5], 40, 30)
        x = (exact / exact.abs().max() * scale).to(dtype)
        relative = float((through(text, x).double() - x.double()).norm() / x.double().norm())
        floor = float(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / x.double().abs().max())
        assert relative <= tolerance + 4 * floor * math.sqrt(x.numel()) / float((x / x.abs().max()).double().norm())


def test_factors_of_half_precision_stay_far_from_the_ends_of_its_range():
    for scale in (6e4, 1e-7):
        (part,) = parse_compressor("svd(rank=1)").encode(torch.full((512, 512), scale, dtype=torch.float16), KEY).parts
        assert part.dtype == torch.float16
        assert 1e-4 < float(part.abs().min()) <= float(part.abs().max()) < 1e3


def test_balance_scales_gives_equal_peaks_and_the_same_product():
    factors = [torch.full((2,), scale, dtype=torch.float64) for scale in (1e-20, 3.0, 1e35)]
    out = balance_scales(factors, 7)
    peaks = [float(factor.abs().max()) for factor in out]
    assert max(peaks) <= 4 * min(peaks)
    assert math.prod(peaks) == pytest.approx(1e-20 * 3e35 * 2**7, rel=1e-12)
    assert not any(factor.any() for factor in balance_scales([torch.zeros(2), torch.ones(3)], 5))


@pytest.mark.parametrize(
    "text",
    [
        "svd(rank=1)",
        "rsvd(rank=1)",
        "st_hosvd(rank=1)",
        "hosvd(rank=1)",
        "tensor_train(rank=1)",
        "cp(rank=1)",
        "projection(rank=1)",
    ],
)
def test_numbers_that_are_not_finite_make_a_payload_that_decoders_refuse(text):
    for bad in (math.nan, math.inf, -math.inf):
        x = draw("gaussian", (9, 8))
        x[3, 4] = bad
        assert bool(parse_compressor(text).encode(x, KEY).parts[-1].isnan().all())


# how subspaces are found


@pytest.mark.parametrize("shape", [(6, 200), (200, 6), (20, 20)], ids=str)
def test_singular_vectors_of_a_gram_matrix_are_those_of_the_matrix(shape):
    x = draw("heavy tails", shape)
    for rank in (1, 3):
        rows = leading_singular_vectors(x, rank)
        assert rows.shape == (rank, shape[0]) and rows.dtype == torch.float64
        torch.testing.assert_close(rows @ rows.T, torch.eye(rank, dtype=torch.float64))
        expected = float(torch.linalg.svdvals(x.double())[:rank].square().sum())
        assert energy(rows @ x.double()) == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(gram_matrix(x), x.double() @ x.double().T)


def test_rank_deficient_matrices_have_full_bases():
    for x in (torch.zeros(5, 9), torch.zeros(9, 5), torch.ones(9, 5), with_spectrum([1.0, 1e-3], 9, 5)):
        rows = leading_singular_vectors(x, 4)
        torch.testing.assert_close(rows @ rows.T, torch.eye(4, dtype=torch.float64))


def test_choose_rank_keeps_as_few_as_the_limit_allows():
    energies = torch.tensor([9.0, 4.0, 1.0, 0.0])
    assert [choose_matrix_rank(energies, 4, spare) for spare in (0.0, 0.9, 1.0, 4.9, 5.0, 14.0)] == [3, 3, 2, 2, 1, 1]
    assert (
        choose_matrix_rank(energies, 2, 0.0) == 2
        and choose_matrix_rank(energies, 3, None) == 3
        and choose_matrix_rank(energies, 9, None) == 4
    )


# randomised SVD


@pytest.mark.parametrize("spectrum", ["flat", "falling", "one of two", "nearly flat"])
@pytest.mark.parametrize("settings", [(0, 0), (2, 0), (0, 1), (8, 1)], ids=str)
def test_randomized_svd_keeps_its_fraction_in_expectation(spectrum, settings):
    """Even without oversampling, and for directions that lie along the axes."""
    values = {
        "flat": [1.0] * 6,
        "falling": [0.7**i for i in range(6)],
        "one of two": [1.0, 0.0] * 3,
        "nearly flat": [1.0, 1.0, 1.0, 0.98, 0.98, 0.98],
    }[spectrum]
    along_axes = torch.zeros(6, 9, dtype=torch.float64)
    along_axes[range(6), range(6)] = torch.tensor(values, dtype=torch.float64)
    for x in (along_axes, with_spectrum(values, 6, 9, dtype=torch.float64)):
        for rank in (1, 4):
            pairs = [randomized_svd(x, rank, *settings, derive_key(i)) for i in range(100)]
            kept = [energy(left.T @ right) / energy(x) for left, right in pairs]
            spread = float(torch.tensor(kept).std()) / math.sqrt(len(kept))
            assert sum(kept) / len(kept) >= rank / 6 - 4 * spread - 1e-9


def test_randomized_svd_is_near_the_best_for_decaying_spectra():
    x = with_spectrum([0.8**i for i in range(60)], 60, 90)
    best = lost("svd(rank=4)", x)
    assert lost("rsvd(rank=4)", x) <= 1.02 * best
    assert lost("rsvd(rank=4, iterations=3)", x) <= 1.0001 * best
    assert best < lost("rsvd(rank=4, oversampling=0, iterations=0)", x) < 4 * best


def test_draw_normal_gives_normal_numbers():
    x = draw_normal(100, 1000, KEY, torch.device("cpu"))
    assert float(x.mean()) == pytest.approx(0, abs=0.02)
    assert [float((x**k).mean()) for k in (2, 4)] == pytest.approx([1, 3], rel=0.05)


# random projection


def test_the_expected_projection_is_a_multiple_of_the_identity():
    """E P'P = (r/m) I, so (m/r) P'P A has the mean A."""
    draws = 1000
    for rank, length in ((1, 5), (3, 8)):
        total = torch.zeros(length, length, dtype=torch.float64)
        for i in range(draws):
            basis = draw_directions(derive_key("mean", i), rank, length, torch.device("cpu"))
            total += basis.T @ basis
        wanted = torch.eye(length, dtype=torch.float64) * rank / length
        assert float((total / draws - wanted).abs().max()) < 4.5 * 0.5 / math.sqrt(draws)


@pytest.mark.parametrize("shape", [(33, 5), (5, 33), (40,)], ids=str)
def test_a_projection_has_exactly_the_variance_of_its_contract(shape):
    x = draw("heavy tails", shape)
    part = parse_compressor("projection(rank=2)")
    errors = torch.tensor([lost("projection(rank=2)", x, derive_key("v", i)) for i in range(250)])
    omega = part.contract(TensorSpec.of("x", x)).omega
    assert float(errors.mean()) == pytest.approx(omega, abs=4 * float(errors.std()) / math.sqrt(250))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_projections_of_sums_are_sums_of_projections(dtype):
    part = parse_compressor("projection(rank=3)")
    for shape in ((30, 20), (20, 30), (100,), (8, 4, 3, 3)):
        xs = [draw("gaussian", shape, dtype, seed) for seed in range(4)]
        spec = TensorSpec.of("x", xs[0])
        payloads = [part.encode(x, KEY) for x in xs]
        total = Payload((sum(payload.parts[0] for payload in payloads),))
        torch.testing.assert_close(total.parts[0], part.encode(sum(xs), KEY).parts[0], rtol=1e-4, atol=1e-4)
        separate = sum(part.decode(payload, spec, KEY) for payload in payloads)
        torch.testing.assert_close(part.decode(total, spec, KEY), separate, rtol=1e-4, atol=1e-4)


def test_only_the_projection_is_sent_in_the_length_of_the_shorter_side():
    for shape in ((200, 30), (30, 200)):
        payload = parse_compressor("projection(rank=2)").encode(draw("gaussian", shape), KEY)
        assert payload.num_bytes == 4 * 2 * 30
        assert payload.kinds == ("factors",)


def test_a_projection_of_the_largest_numbers_is_finite():
    x = torch.full((30, 20), torch.finfo(torch.float32).max)
    assert bool(through("projection(rank=2)", x).isfinite().all())


# which layers, which form


def test_layers_are_sent_dense_where_factors_would_be_as_long():
    part = parse_compressor("svd(rank=4)")
    for shape in ((), (0,), (1,), (7,), (64,), (8, 8), (4, 1000), (3, 1, 1), (1000, 1)):
        spec = TensorSpec("x", shape)
        assert part.encode(torch.zeros(shape), KEY).kinds == ("dense",)
        assert part.num_bytes(spec) == 4 * spec.numel
        assert part.contract(spec) == (1.0, 0.0)
    for shape, values in (((9, 73), 328), ((112,), 88), ((64, 3, 3, 3), 364), ((1009,), 256)):
        payload = part.encode(draw("gaussian", shape), KEY)
        assert payload.kinds == ("factors",)
        assert payload.num_bytes == 4 * values == part.num_bytes(TensorSpec("x", shape))


def test_the_meter_names_layers_that_were_sent_dense():
    layers = [TensorSpec("weight", (30, 20)), TensorSpec("bias", (7,))]
    meters = [Meter(), Meter()]
    exchangers = [Exchanger(layers, parse("ef(svd(rank=2))")) for _ in meters]
    tensors = {spec.name: draw("gaussian", spec.shape) for spec in layers}
    lockstep([e.run_step(tensors, 0, World(rank, 2)) for rank, e in enumerate(exchangers)], meters)
    kinds = {(where.layer, where.kind) for where in meters[0].rows if where.layer}
    assert kinds == {("weight", "factors"), ("bias", "dense")}


def test_dims_apply_to_layers_of_that_size_only():
    part = parse_compressor("svd(rank=1, dims=(14, 8))")
    assert part.num_bytes(TensorSpec("x", (112,))) == 4 * 22  # what the published code counts, too
    assert part.num_bytes(TensorSpec("x", (28, 4))) == 4 * 22
    assert part.num_bytes(TensorSpec("x", (100,))) == 4 * 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("svd(rank=0)", "rank must be at least 1, got 0"),
        ("svd(dims=(14,))", r"dims must be positive integers such as \(14, 8\), got \(14,\)"),
        ("rsvd(dims=(7, 4, 4))", "dims must be positive integers"),
        ("projection(dims=(7, 0))", "dims must be positive integers"),
        ("rsvd(oversampling=-1)", "at least 0"),
        ("svd(dims=(2.5, 3))", "dims must be positive integers"),
    ],
)
def test_invalid_settings_are_refused(text, words):
    with pytest.raises(CompositionError, match=words):
        parse_compressor(text)


# the same bits everywhere


TEXTS = [
    "svd(rank=3)",
    "rsvd(rank=5)",
    "projection(rank=3)",
    "projection(rank=2, scaled=false)",
    "st_hosvd(rank=2)",
    "hosvd(rank=2)",
    "tensor_train(rank=3)",
    "tensor_train(max_error=0.5)",
    "cp(rank=3)",
]
CASES = [
    (text, shape, dtype)
    for text in TEXTS
    for shape in ((40, 30), (8, 12, 3, 3), (500,))
    for dtype in ("float32", "float16", "bfloat16", "float64")
]
DECODE = """
import sys
sys.path.insert(0, sys.argv[1])
from test_low_rank import decoded_digests
from helpers.other_cpu import ordinary_product
print(ordinary_product(), *decoded_digests(sys.argv[2]))
"""


def decoded_digests(folder):
    """What stored payloads decode to."""
    for number, (text, shape, dtype) in enumerate(CASES):
        dtypes = json.loads((Path(folder) / f"{number}.json").read_text())
        stored = [np.load(Path(folder) / f"{number}.{i}.npy") for i in range(len(dtypes))]
        parts = [from_bytes(torch.from_numpy(raw), getattr(torch, t)) for raw, t in zip(stored, dtypes, strict=True)]
        spec = TensorSpec("x", shape, getattr(torch, dtype))
        yield digest(parse_compressor(text).decode(Payload(tuple(parts)), spec, KEY))


def test_payloads_decode_to_the_same_bits_on_another_kernel_path(tmp_path, request):
    for number, (text, shape, dtype) in enumerate(CASES):
        payload = parse_compressor(text).encode(draw("heavy tails", shape, getattr(torch, dtype)), KEY)
        for i, part in enumerate(payload.parts):
            np.save(tmp_path / f"{number}.{i}.npy", as_bytes(part).numpy())
        types = [str(part.dtype).removeprefix("torch.") for part in payload.parts]
        (tmp_path / f"{number}.json").write_text(json.dumps(types))
    ordinary, *there = run_elsewhere(DECODE, str(request.path.parent), str(tmp_path))
    assert ordinary != ordinary_product(), "both processes multiply alike here, so this test shows nothing"
    assert there == list(decoded_digests(tmp_path))
