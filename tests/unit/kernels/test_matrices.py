import math

import pytest
import torch

from helpers.other_cpu import digest, ordinary_product, run_elsewhere
from thinwire.core import derive_key
from thinwire.kernels import noise_matrix, orthonormalize, reproducible_matmul

CPU = torch.device("cpu")
SHAPES = [(1, 1, 1), (5, 1, 7), (60, 4, 90), (33, 100, 20), (3, 5000, 2), (700, 8, 600)]


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# reproducible_matmul


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 22), (torch.float64, 44)], ids=str)
def test_the_product_is_that_of_float64_but_for_few_last_bits(shape, dtype, bits):
    rows, inner, columns = shape
    left, right = normal(rows, inner), normal(inner, columns, seed=1)
    bound = left.abs().max() * right.abs().max() * inner  # as large as a sum of products can be
    error = (reproducible_matmul(left, right, dtype).double() - left @ right).abs().max()
    assert error <= 2.0 ** -(bits + inner.bit_length() // 2 - inner.bit_length()) * bound / math.sqrt(inner)


def test_a_product_of_few_terms_is_right_to_22_bits_of_its_largest():
    left, right = normal(400, 4).float(), normal(4, 300, seed=1).float()
    exact = left.double() @ right.double()
    assert (reproducible_matmul(left, right).double() - exact).abs().max() <= 2.0**-22 * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_the_order_of_addition_does_not_matter(dtype):
    for inner in (3, 64, 1000):
        left, right = normal(20, inner) * 10.0 ** normal(1, inner, seed=2), normal(inner, 30, seed=1)
        expected = reproducible_matmul(left, right, dtype)
        for seed in range(5):
            order = torch.randperm(inner, generator=torch.Generator().manual_seed(seed))
            assert torch.equal(reproducible_matmul(left[:, order], right[order], dtype), expected)
            rows = torch.randperm(20, generator=torch.Generator().manual_seed(seed))
            assert torch.equal(reproducible_matmul(left[rows], right, dtype), expected[rows])


def test_the_layout_in_memory_does_not_matter():
    left, right = normal(50, 6), normal(6, 70, seed=1)
    assert torch.equal(
        reproducible_matmul(left.T.contiguous().T, right.T.contiguous().T), reproducible_matmul(left, right)
    )


PRODUCTS = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from test_matrices import products
from helpers.other_cpu import ordinary_product
print(ordinary_product(), *products())
"""


def products():
    """Digests of products in every type, of factors that are balanced and of some that are not."""
    found = []
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for rows, inner, columns in SHAPES:
            left, right = normal(rows, inner) * 10.0 ** normal(rows, 1, seed=3), normal(inner, columns, seed=1)
            found.append(digest(reproducible_matmul(left, right, dtype)))
    noise = noise_matrix(7, 300, derive_key("elsewhere"), CPU)
    return [*found, digest(noise), digest(orthonormalize(noise)), digest(orthonormalize(normal(12, 40).float()))]


def test_products_noise_and_bases_have_the_same_bits_on_another_kernel_path(request):
    ordinary, *there = run_elsewhere(PRODUCTS, str(request.path.parent))
    assert ordinary != ordinary_product(), "both processes multiply alike here, so this test shows nothing"
    assert there == products()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_what_is_too_large_becomes_the_largest_number(dtype):
    limit = torch.finfo(dtype).max
    high = torch.tensor([[1e200, -1e200, 0.0]], dtype=torch.float64)
    product = reproducible_matmul(high.T, high, dtype)
    assert product.tolist() == [[limit, -limit, 0.0], [-limit, limit, 0.0], [0.0, 0.0, 0.0]]
    most = torch.full((2, 3), torch.finfo(torch.float64).max, dtype=torch.float64)
    assert bool((reproducible_matmul(most, most.T, dtype) == limit).all())
    assert bool(reproducible_matmul(most, -most.T * most.T.sign().cumsum(0).remainder(2), dtype).isfinite().all())


def test_the_smallest_numbers_do_not_vanish():
    for scale in (1e-18, 1e-22):
        low = torch.full((1, 1), scale, dtype=torch.float32)
        assert float(reproducible_matmul(low, low)) == pytest.approx(scale**2, rel=1e-6 if scale > 1e-20 else 0.1)
    least = torch.full((1, 1), 2.0**-530, dtype=torch.float64)
    assert float(reproducible_matmul(least, least, torch.float64)) == 2.0**-1060
    least = torch.full((1, 1), 2.0**-1060, dtype=torch.float64)
    assert float(
        reproducible_matmul(least, 1 / torch.full((1, 1), 2.0**-1000, dtype=torch.float64), torch.float64)
    ) in (
        0.0,
        2.0**-60,
    )


def test_empty_factors_give_an_empty_product_or_zeros():
    assert reproducible_matmul(torch.zeros(0, 3), torch.zeros(3, 2)).shape == (0, 2)
    assert reproducible_matmul(torch.zeros(2, 3), torch.zeros(3, 0)).shape == (2, 0)
    assert reproducible_matmul(torch.zeros(2, 0), torch.zeros(0, 3)).tolist() == [[0.0] * 3] * 2


# orthonormal


def assert_orthonormal(basis, zero_rows=()):
    expected = torch.ones(len(basis), dtype=torch.float64)
    expected[list(zero_rows)] = 0
    torch.testing.assert_close(basis @ basis.T, expected.diag(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (4, 4), (5, 33), (40, 64), (3, 5000)], ids=str)
def test_rows_become_orthonormal_and_span_the_same(shape):
    rows = normal(*shape)
    kept = rows.clone()
    basis = orthonormalize(rows)
    assert torch.equal(rows, kept) and basis.dtype == torch.float64
    assert_orthonormal(basis)
    torch.testing.assert_close(rows @ basis.T @ basis, rows, rtol=1e-9, atol=1e-9)
    assert bool(((rows @ basis.T).diagonal() > 0).all())  # in their order and with their signs


def test_rows_that_add_nothing_become_zero():
    rows = normal(6, 20)
    rows[1] = 0
    rows[3] = -2.5 * rows[0]
    rows[5] = rows[0] + rows[2]
    assert_orthonormal(orthonormalize(rows), zero_rows=(1, 3, 5))
    assert not orthonormalize(torch.zeros(3, 5)).any()
    assert_orthonormal(orthonormalize(normal(5, 3)), zero_rows=(3, 4))


def test_rows_of_any_size_count_alike():
    rows = normal(4, 30)
    for scales in ([1e-300, 1.0, 1e300, 1e-30], [1e308, 1e-308, 1e-320, 1.0]):
        basis = orthonormalize(rows / rows.abs().amax() * torch.tensor(scales, dtype=torch.float64)[:, None])
        assert_orthonormal(basis)
    torch.testing.assert_close(orthonormalize(rows * 2.0**40), orthonormalize(rows), rtol=0, atol=0)


def test_nearly_equal_rows_are_told_apart():
    rows = normal(2, 50)
    rows[1] = rows[0] + 1e-7 * rows[1]
    basis = orthonormalize(rows)
    assert abs(float(basis[0] @ basis[1])) < 1e-8  # rounding, as large beside the difference as it is here


def test_empty_matrices_have_empty_bases():
    assert orthonormalize(torch.zeros(0, 4)).shape == (0, 4)
    assert orthonormalize(torch.zeros(3, 0)).shape == (3, 0)


# noise_matrix


def test_noise_is_symmetric_and_nearly_normal():
    noise = noise_matrix(200, 500, derive_key("noise"), CPU)
    assert noise.shape == (200, 500) and noise.dtype == torch.float64
    assert abs(float(noise.mean())) < 4 / math.sqrt(noise.numel())
    assert float(noise.var()) == pytest.approx(1.0, rel=0.02)
    assert float((noise**3).mean()) == pytest.approx(0.0, abs=0.03)
    assert float((noise**4).mean()) == pytest.approx(2.7, rel=0.03)  # 3 for normal numbers
    neighbours = (noise[:, 1:] * noise[:, :-1]).mean()
    assert abs(float(neighbours)) < 4 / math.sqrt(noise.numel())
    assert not torch.equal(noise, noise_matrix(200, 500, derive_key("other"), CPU))
