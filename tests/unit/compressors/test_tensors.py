"""Tensors sent as factors: st_hosvd, hosvd, tensor_train, cp."""

import math

import pytest
import torch

from helpers.cases import KINDS, draw
from thinwire import CompositionError, DecodeError, TensorSpec
from thinwire.catalog import parse_compressor, to_text
from thinwire.compressors.cp import alternating_least_squares, outer_products
from thinwire.compressors.tensor_train import core_shapes, decompose_by_error, decompose_by_ranks, multiply_cores
from thinwire.compressors.tucker import tucker_decompose
from thinwire.core import Payload, derive_key

KEY = derive_key("tensors")
SMALL = (7, 2, 2, 2, 2)  # the published experiment's 112 numbers
PUBLISHED = "dims=(7, 2, 2, 2, 2), ranks=(1, 1, 2, 1, 1)"


def through(text, x, key=KEY):
    part = parse_compressor(text)
    return part.decode(part.encode(x, key), TensorSpec.of("x", x), key)


def energy(x):
    return float(x.double().square().sum())


def kept(text, x):
    return energy(through(text, x)) / energy(x)


def outer_product(sizes, seed=0, terms=1):
    """A sum of outer products of random vectors."""
    return (
        outer_products([draw("gaussian", (terms, n), torch.float64, seed + i) for i, n in enumerate(sizes)])
        .sum(0)
        .view(sizes)
    )


PROJECTIONS = [
    "st_hosvd(rank=2)",
    "hosvd(rank=2)",
    "tensor_train(rank=2)",
    "tensor_train(max_error=0.7)",
    f"st_hosvd({PUBLISHED})",
    f"hosvd({PUBLISHED})",
]


@pytest.mark.parametrize("text", PROJECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_decoded_tensor_and_the_error_are_orthogonal(text, kind):
    """|x|^2 = |x - y|^2 + |y|^2, at any scale: so nothing gets longer."""
    for shape in ((112,), (4, 5, 6), (6, 3, 3, 3)):
        x = draw(kind, shape)
        scale = float(x.abs().max()) or 1.0
        y, x = through(text, x).double() / scale, x.double() / scale
        assert energy(x - y) + energy(y) == pytest.approx(energy(x), rel=1e-5)


@pytest.mark.parametrize(
    "text", ["st_hosvd(rank=9)", "hosvd(rank=9)", "tensor_train(rank=99)", "st_hosvd(ranks=(4, 5, 6), dims=(4, 5, 6))"]
)
def test_full_rank_is_sent_dense_and_exact(text):
    x = draw("gaussian", (4, 5, 6))
    assert parse_compressor(text).encode(x, KEY).kinds == ("dense",)
    assert torch.equal(through(text, x), x)


@pytest.mark.parametrize(
    "text", ["st_hosvd(rank=1)", "hosvd(rank=1)", "tensor_train(rank=1)", "tensor_train(max_error=0.001)", "cp(rank=1)"]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-12)], ids=str)
def test_an_outer_product_is_decoded_exactly(text, dtype, tolerance):
    for sizes in ((5, 6, 7), (8, 4, 3, 3), (9, 20)):
        x = outer_product(sizes).to(dtype)
        assert parse_compressor(text).encode(x, KEY).kinds[-1] == "factors"
        torch.testing.assert_close(through(text, x), x, rtol=0, atol=tolerance * float(x.abs().max()))


# Tucker


@pytest.mark.parametrize("sequential", [True, False])
def test_a_core_and_bases_of_full_rank_give_the_tensor(sequential):
    x = draw("gaussian", (4, 5, 6), torch.float64)
    core, *bases = tucker_decompose(x, [(0, 4), (1, 5), (2, 6)], sequential)
    for basis in bases:
        torch.testing.assert_close(basis @ basis.T, torch.eye(len(basis), dtype=torch.float64))
    torch.testing.assert_close(torch.einsum("abc,ai,bj,ck->ijk", core, *bases), x)


def test_st_hosvd_keeps_its_delta_of_every_tensor_and_hosvd_next_to_nothing_of_some():
    st, plain = parse_compressor(f"st_hosvd({PUBLISHED})"), parse_compressor(f"hosvd({PUBLISHED})")
    spec = TensorSpec("x", (112,))
    assert st.contract(spec).delta == pytest.approx(1 / 56)  # 1/7 * 1/2 * 1/2 * 1/2
    assert plain.contract(spec).delta is None
    shares = [[kept(to_text(part), draw("gaussian", (112,), seed=seed)) for seed in range(150)] for part in (st, plain)]
    assert min(shares[0]) > 3 / 56
    assert min(shares[1]) < min(shares[0]) / 5
    assert sum(shares[0]) > sum(shares[1])


def test_the_delta_of_st_hosvd_is_tight_for_flat_matrices_and_holds_for_adversarial_tensors():
    flat = torch.linalg.qr(draw("gaussian", (12, 12), torch.float64)).Q
    assert kept("st_hosvd(rank=3)", flat) == pytest.approx(3 / 12)
    part, spec = parse_compressor("st_hosvd(rank=1)"), TensorSpec("x", (4, 4, 4))
    delta = part.contract(spec).delta
    assert delta == pytest.approx(1 / 4 * 1 / 4)  # after two cuts the third mode stands alone and is not cut
    permutations = torch.zeros(4, 4, 4)  # a Latin square: flat in every unfolding
    for i in range(4):
        for j in range(4):
            permutations[i, j, (i + j) % 4] = 1.0
    assert kept("st_hosvd(rank=1)", permutations) >= delta


def test_modes_at_full_rank_stay_in_the_core():
    """15 numbers: a core of 2 and bases of 7 + 2 + 2 + 2. The published code counts 17 and would need 19."""
    spec = TensorSpec("x", (112,))
    for name in ("st_hosvd", "hosvd"):
        part = parse_compressor(f"{name}({PUBLISHED})")
        assert part.factor_shapes(part.fold_dims(spec.shape)) == [(1, 1, 2, 1, 1), (1, 7), (1, 2), (1, 2), (1, 2)]
        assert part.num_bytes(spec) == 4 * 15
    conv = TensorSpec("conv", (64, 32, 3, 3))
    part = parse_compressor("st_hosvd(rank=4)")
    assert part.factor_shapes(part.fold_dims(conv.shape)) == [(4, 4, 3, 3), (4, 64), (4, 32)]
    assert parse_compressor("st_hosvd(rank=4)").num_bytes(TensorSpec("m", (50, 60))) == 4 * 4 * (50 + 60)  # as svd


def test_st_hosvd_of_a_matrix_is_its_truncated_svd():
    x = draw("heavy tails", (30, 20))
    torch.testing.assert_close(through("st_hosvd(rank=3)", x), through("svd(rank=3)", x), rtol=1e-4, atol=1e-3)


def test_hosvd_has_a_delta_where_little_is_truncated():
    part, spec = parse_compressor("hosvd(ranks=(5, 6, 9))"), TensorSpec("x", (6, 7, 9))
    assert part.contract(spec).delta == pytest.approx(1 - 1 / 6 - 1 / 7)
    shares = [kept("hosvd(ranks=(5, 6, 9))", draw("gaussian", (6, 7, 9), seed=seed)) for seed in range(50)]
    assert min(shares) >= 1 - 1 / 6 - 1 / 7


def test_ranks_apply_to_layers_with_as_many_modes_and_rank_to_others():
    only, both = parse_compressor("st_hosvd(ranks=(1, 2, 1))"), parse_compressor("st_hosvd(rank=3, ranks=(1, 2, 1))")
    assert only.factor_shapes((4, 5, 6))[0] == both.factor_shapes((4, 5, 6))[0] == (1, 2, 1)
    assert only.encode(torch.ones(30, 20), KEY).kinds == ("dense",)
    assert both.num_bytes(TensorSpec("x", (30, 20))) == 4 * 3 * 50


# tensor train


def unfolding_tails(x, ranks):
    """For each cut the energy beyond the best matrix of its rank: no train of these ranks loses less than the worst."""
    tails, rows = [], 1
    for size, rank in zip(x.shape[:-1], ranks, strict=True):
        rows *= size
        values = torch.linalg.svdvals(x.double().reshape(rows, -1)).square()
        tails.append(float(values[rank:].sum()) if rank else 0.0)
    return tails


@pytest.mark.parametrize("dims", [(4, 5, 6), (7, 2, 2, 2, 2), (6, 5, 3, 3), (9, 11)], ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_tensor_train_loses_at_most_the_sum_of_its_unfoldings_tails(dims, rank):
    part = parse_compressor(f"tensor_train(rank={rank}, dims={dims})")
    ranks = [r for r, _ in part._truncations(dims)]
    for seed in range(5):
        x = draw("gaussian", dims, torch.float64, seed)
        error = energy(x - multiply_cores(decompose_by_ranks(x, ranks), torch.float64).view(dims))
        tails = unfolding_tails(x, ranks)
        assert max(tails) - 1e-9 <= error <= sum(tails) + 1e-9  # so within N - 1 times the best
        assert energy(x) - error >= part.factored_contract(dims).delta * energy(x) - 1e-9


@pytest.mark.parametrize("error", [0.5, 0.1, 0.01, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_max_error_is_kept_and_ranks_are_no_larger_than_needed(error, dtype):
    dims = (8, 6, 5, 4)
    x = outer_product(dims, terms=3).to(dtype) + 0.003 * draw("gaussian", dims, dtype)
    ranks = []
    cores = decompose_by_error(x, error, ranks)
    assert len(ranks) == 3
    y = multiply_cores(cores, dtype).view(dims)
    assert energy(x - y) <= (error**2 + 1e-11) * energy(x)
    for place, rank in enumerate(ranks):  # one less at any place would break the share of that cut
        tails = unfolding_tails(x, [rank - 1 if at == place and rank > 1 else 0 for at in range(3)])
        assert tails[place] == 0.0 or tails[place] > 0.99 * error**2 / 3 * energy(x)


def test_the_payload_grows_as_max_error_falls_and_ends_dense():
    x = outer_product((16, 12, 10), terms=2).float() + 0.05 * draw("gaussian", (16, 12, 10))
    parts = [parse_compressor(f"tensor_train(max_error={error})").encode(x, KEY) for error in (0.9, 0.3, 0.1, 0.001)]
    sizes = [payload.num_bytes for payload in parts]
    assert sizes == sorted(sizes) and sizes[0] < sizes[1] < sizes[-1] == 4 * x.numel() + 8
    assert [payload.kinds[1] for payload in parts] == ["factors", "factors", parts[2].kinds[1], "dense"]
    assert torch.equal(through("tensor_train(max_error=0.001)", x), x)
    assert parts[1].parts[0].dtype == torch.int32


def test_zeros_give_the_shortest_tensor_train():
    payload = parse_compressor("tensor_train(max_error=0.1)").encode(torch.zeros(8, 8, 8), KEY)
    assert payload.parts[0].tolist() == [1, 1] and not payload.parts[1].any()
    assert payload.num_bytes == 8 + 4 * 24


@pytest.mark.parametrize("ranks", [[-1, 0], [8, 0], [9, 0], [0, 8], [3, 24], [2**31 - 1, 1], [7, 7]], ids=str)
def test_ranks_that_no_encoder_writes_are_refused(ranks):
    part, spec = parse_compressor("tensor_train(max_error=0.1)"), TensorSpec("x", (8, 8, 8))
    body = torch.ones(100)
    with pytest.raises(DecodeError):
        part.decode(Payload((torch.tensor(ranks, dtype=torch.int32), body)), spec, KEY)


def test_modes_share_a_core_where_nothing_is_truncated():
    assert core_shapes((7, 2, 2, 2, 2), [2, 0, 0, 0]) == [(1, 7, 2), (2, 16, 1)]
    assert core_shapes((4, 5, 6), [0, 2]) == [(1, 20, 2), (2, 6, 1)]
    assert core_shapes((4, 5), [0]) == [(1, 20, 1)]
    part = parse_compressor("tensor_train(rank=4)")
    assert part.factor_shapes((64, 32, 3, 3)) == [(1, 64, 4), (4, 32, 4), (4, 9, 1)]
    assert part.num_bytes(TensorSpec("m", (50, 60))) == 4 * 4 * (50 + 60)  # as svd


def test_multiply_cores_equals_the_product_from_left_to_right():
    for sizes in ((3, 4, 5, 6), (50, 2, 2, 3), (2, 3, 2, 50), (5, 7)):
        ranks = [min(2, *sizes)] * (len(sizes) - 1)
        cores = [draw("gaussian", form, torch.float64, i) for i, form in enumerate(core_shapes(sizes, ranks))]
        expected = cores[0]
        for core in cores[1:]:
            expected = torch.tensordot(expected, core, 1)
        torch.testing.assert_close(multiply_cores(cores, torch.float64).view(sizes), expected.view(sizes))


# CP


def test_alternating_least_squares_never_increases_error_or_norm():
    x = draw("gaussian", (6, 7, 8), torch.float64)
    errors = []
    for sweeps in (1, 2, 4, 8, 16):
        first, *others = alternating_least_squares(x, 3, sweeps, KEY, 1e-12)
        y = (first.T @ outer_products(others)).view(x.shape)
        errors.append(energy(x - y))
        assert energy(y) + errors[-1] == pytest.approx(energy(x))  # the last turn is a projection
    assert errors == sorted(errors, reverse=True)


def test_a_sum_of_outer_products_is_found():
    x = outer_product((6, 7, 8), terms=3, seed=4).float()
    assert energy(x - through("cp(rank=3, sweeps=60)", x)) < 1e-4 * energy(x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_cp_never_increases_the_norm_even_where_no_best_sum_exists(kind, dtype):
    limit = {torch.float32: 1.001, torch.float16: 1.1, torch.bfloat16: 1.3}[dtype]
    degenerate = torch.zeros(4, 4, 4)
    degenerate[0, 0, 1] = degenerate[0, 1, 0] = degenerate[1, 0, 0] = 1.0  # of rank three, but a limit of rank two
    for x in (draw(kind, (5, 4, 6), dtype), draw(kind, (60,), dtype), degenerate.to(dtype)):
        y, scale = through("cp(rank=2, sweeps=30)", x).double(), float(x.abs().max()) or 1.0
        assert energy(y / scale) <= limit * energy(x.double() / scale)


def test_cp_may_have_a_rank_above_the_size_of_a_mode():
    x = draw("gaussian", (2, 3, 40))
    assert parse_compressor("cp(rank=4)").factor_shapes((2, 3, 40)) == [(4, 2), (4, 3), (4, 40)]
    assert kept("cp(rank=4)", x) > kept("cp(rank=1)", x)


# settings


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hosvd()", "give rank or ranks"),
        ("st_hosvd(rank=0)", "rank must be at least 1"),
        ("st_hosvd(ranks=(1, 0))", "ranks must be positive integers"),
        ("st_hosvd(dims=(7, 16), ranks=(1, 1, 1))", "ranks and dims must have the same length"),
        ("tensor_train()", "give either rank or max_error"),
        ("tensor_train(rank=2, max_error=0.1)", "give either rank or max_error"),
        ("tensor_train(max_error=1)", r"max_error must be in \(0, 1\)"),
        ("tensor_train(rank=2, dims=(5,))", "dims must be positive integers"),
        ("cp(sweeps=0)", "sweeps must be at least 1"),
        ("cp(rank=2, dims=7)", "expected none or tuple, got 7"),
    ],
)
def test_invalid_settings_are_refused(text, words):
    with pytest.raises(CompositionError, match=words):
        parse_compressor(text)


def test_tuple_settings_are_parsed_and_printed():
    for text in (
        "svd(rank=1, dims=(14, 8))",
        "hosvd(ranks=(1, 1, 2, 1, 1), dims=(7, 2, 2, 2, 2))",
        "tensor_train(max_error=0.1)",
    ):
        assert to_text(parse_compressor(text)) == text
    assert math.prod(parse_compressor("svd(rank=1, dims=(14, 8))").dims) == 112
