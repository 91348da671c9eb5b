"""Fixed tensors and keys on which capabilities are observed."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Compressor, Key, TensorSpec, derive_key

_PROBE_KEY = "observed"  # frozen: makes the random bits

KEY = derive_key(1, _PROBE_KEY)


def key_at(number: int) -> Key:
    return derive_key(1, _PROBE_KEY, number)


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def heavy_tails(*shape: int, seed: int = 0) -> Tensor:
    x = gaussian(*shape, seed=seed, dtype=torch.float64)
    return (x.sign() * x.abs().pow(5)).float()


def rank_one(rows: int, columns: int, seed: int = 0) -> Tensor:
    return gaussian(rows, 1, seed=seed) @ gaussian(1, columns, seed=seed + 1)


def with_zeros(*shape: int, share: float, seed: int = 0) -> Tensor:
    """Normal numbers, about a share of which are not zero."""
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(seed + 1000)) < share
    return gaussian(*shape, seed=seed) * kept


def send_probe(compressor: Compressor, x: Tensor, key: Key = KEY) -> Tensor:
    return compressor.decode(compressor.encode(x, key), TensorSpec.of("x", x), key)


def bias_energy(x: Tensor, outcomes: list[Tensor]) -> float:
    """|x - E y|² / |x|² of independent outcomes y, without the part that their variance would add."""
    errors = [(x - y).double().flatten() for y in outcomes]
    total = torch.stack(errors).sum(0)
    own = sum(float(error.square().sum()) for error in errors)
    pairs = len(errors) * (len(errors) - 1)
    return (float(total.square().sum()) - own) / pairs / float(x.double().square().sum())
