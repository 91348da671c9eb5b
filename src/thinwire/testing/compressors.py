"""Laws of compressors, over random tensors: shape and type, finiteness, size, contract."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import Capability, Compressor, Key, Payload, TensorSpec, derive_key, has, is_additive
from .decoders import DECODER_LAWS
from .laws import Law, check_all, law
from .tensors import DTYPES, KINDS, SHAPES, draw

_LAW_KEY = "law"  # frozen: makes the random bits
_UNBIASED_KEY = "unbiased"  # frozen: makes the random bits

COMPRESSOR_LAWS: list[Law] = []
KEY = derive_key(1, _LAW_KEY)
MANY_DRAWS = 120  # the share that a random direction keeps of one coordinate has a long tail


def check_compressor(compressor: Compressor) -> None:
    """Check all laws of compressors and of decoders.

    Args:
        compressor: with the settings to be tested.

    Raises:
        AssertionError: a law is broken.
    """
    assert isinstance(compressor, Compressor), f"{compressor!r} lacks encode, decode, contract or num_bytes"
    check_all(COMPRESSOR_LAWS, compressor)
    check_all(DECODER_LAWS, compressor)


def roundtrip(compressor: Compressor, x: Tensor, key: Key = KEY) -> Tensor:
    """Encode and decode a tensor.

    Args:
        compressor: encodes and decodes it.
        x: the tensor.
        key: random bits.

    Returns:
        The decoded tensor.
    """
    return compressor.decode(compressor.encode(x, key), TensorSpec.of("x", x), key)


def relative_error(x: Tensor, y: Tensor) -> float:
    """Return |x - y|^2 / |x|^2, in float64 and without overflow."""
    scale = float(x.abs().max()) or 1.0
    x, y = x.double() / scale, y.double() / scale
    return float((x - y).square().sum() / x.square().sum().clamp(min=1e-300))


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    found = torch.tensor(values, dtype=torch.float64)
    return float(found.mean()), float(found.std()) / math.sqrt(len(found)) if len(found) > 1 else 0.0


@law(COMPRESSOR_LAWS, dtype=DTYPES)
def finite_in_gives_finite_out_of_the_same_form(compressor: Compressor, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        for kind in KINDS:
            x = draw(kind, shape, dtype)
            y = roundtrip(compressor, x)
            assert (y.shape, y.dtype) == (x.shape, x.dtype)
            assert bool(y.isfinite().all()), (kind, shape)


@law(COMPRESSOR_LAWS)
def zero_in_gives_zero_out(compressor: Compressor) -> None:
    for shape in SHAPES:
        assert not roundtrip(compressor, torch.zeros(shape)).any()


@law(COMPRESSOR_LAWS)
def encoding_depends_on_values_and_key_alone_and_changes_nothing(compressor: Compressor) -> None:
    x = draw("gaussian", (24, 10))
    kept = x.clone()
    once = compressor.encode(x, KEY)
    strided = draw("gaussian", (24, 10)).T.contiguous().T  # the same values, columns first in memory
    again = compressor.encode(strided, KEY)
    assert torch.equal(x, kept)
    assert len(once.parts) == len(again.parts)
    assert all(torch.equal(a, b) for a, b in zip(once.parts, again.parts, strict=True))
    assert all(part.is_contiguous() for part in once.parts)


@law(COMPRESSOR_LAWS)
def expected_size_is_the_size_sent(compressor: Compressor) -> None:
    if has(compressor, Capability.VARIABLE_SIZE):
        return  # how many these send depends on the numbers
    for shape in ((1,), (7,), (33, 5), (40, 50)):
        x = draw("gaussian", shape)
        sent, expected = compressor.encode(x, KEY).num_bytes, compressor.num_bytes(TensorSpec.of("x", x))
        assert abs(sent - expected) <= 0.1 * expected + 3, (shape, sent, expected)


@law(COMPRESSOR_LAWS)
def model_bits_never_exceed_the_bytes_sent_by_more_than_the_coding_gains(compressor: Compressor) -> None:
    payload = compressor.encode(draw("gaussian", (40, 50)), KEY)
    model = sum(payload.model_bits)
    assert len(payload.kinds) == len(payload.model_bits) == len(payload.parts)
    assert 0.9 * model - 64 <= 8 * payload.num_bytes <= 1.1 * model + 64


@law(COMPRESSOR_LAWS)
def contraction_holds(compressor: Compressor) -> None:
    for shape in ((1,), (7,), (33, 5), (600,)):
        delta = compressor.contract(TensorSpec("x", shape)).delta
        if delta is None:
            return
        for kind in KINDS:
            # beyond 2^127 there is no further power of two to round to, and half of a number may be lost
            bound = max(1 - delta, 1 / 4) if kind == "one huge" else 1 - delta
            mean, spread = _mean_error(compressor, draw(kind, shape), bound, 60 if kind == "gaussian" else 4)
            assert mean <= bound + 1e-6 + 4 * spread, (kind, shape)


def _mean_error(compressor: Compressor, x: Tensor, bound: float, draws: int) -> tuple[float, float]:
    """Mean relative error over keys and its standard error; over more keys where few are not conclusive."""
    errors: list[float] = []
    for count in (draws, 60, MANY_DRAWS):
        errors += [relative_error(x, roundtrip(compressor, x, derive_key(i))) for i in range(len(errors), count)]
        mean, spread = mean_and_spread(errors)
        clear = count >= 60 or spread <= 0.02 * mean  # of errors that hardly differ, four are enough
        if clear and mean <= bound + 1e-6 + 4 * spread:
            break
    return mean, spread


@law(COMPRESSOR_LAWS, kind=("gaussian", "heavy tails", "sparse"))
def unbiased_compressors_have_mean_x_and_bounded_variance(compressor: Compressor, kind: str) -> None:
    x = draw(kind, (40,))
    omega = compressor.contract(TensorSpec.of("x", x)).omega
    if omega is None:
        return
    draws = 2000
    ys = torch.stack([roundtrip(compressor, x, derive_key(_UNBIASED_KEY, i)) for i in range(draws)]).double()
    mean, spread = ys.mean(0), ys.std(0) / math.sqrt(draws)
    rare = (ys != ys.mode(0).values).sum(0) < 20  # too few events for their spread to be estimated from them
    spread = torch.where(rare, (x.abs() * x.abs().max() / draws).sqrt(), spread)
    assert bool(((mean - x.double()).abs() <= 5 * spread + 1e-4 * x.abs().max()).all())
    error, error_spread = mean_and_spread([relative_error(x, y) for y in ys])
    assert error <= omega + 4 * error_spread + 1e-9


@law(COMPRESSOR_LAWS)
def payloads_of_additive_compressors_add_up(compressor: Compressor) -> None:
    x, y = draw("gaussian", (33, 5), torch.float64, 1), draw("gaussian", (33, 5), torch.float64, 2)
    spec = TensorSpec.of("x", x)
    if not is_additive(compressor):
        return
    one, two = compressor.encode(x, KEY), compressor.encode(y, KEY)
    total = Payload(tuple(a + b for a, b in zip(one.parts, two.parts, strict=True)))
    separate = compressor.decode(one, spec, KEY) + compressor.decode(two, spec, KEY)
    torch.testing.assert_close(compressor.decode(total, spec, KEY), separate)
