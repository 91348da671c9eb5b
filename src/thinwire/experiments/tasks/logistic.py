"""Logistic regression with a ridge: one worker's share of it, and the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from .mushrooms import load_mushrooms


@dataclass(frozen=True, eq=False)
class Logistic:
    """mean log(1 + exp(x·w)) - y x·w, plus ridge/2 |w|^2; labels y are 0 or 1."""

    features: Tensor  # (rows, d)
    labels: Tensor  # (rows,)
    ridge: float

    def loss(self, weights: Tensor) -> Tensor:
        scores = self.features @ weights
        return (softplus(scores) - self.labels * scores).mean() + self.ridge / 2 * weights.square().sum()

    def gradient(self, weights: Tensor) -> Tensor:
        errors = torch.sigmoid(self.features @ weights) - self.labels
        return self.features.T @ errors / len(self.labels) + self.ridge * weights

    def accuracy(self, weights: Tensor) -> Tensor:
        return ((self.features @ weights > 0) == (self.labels > 0.5)).to(torch.float64).mean()

    @cached_property
    def smoothness(self) -> float:
        """L: the largest eigenvalue of the features' Gram matrix over 4, plus the ridge."""
        gram = self.features.double().T @ self.features.double() / len(self.labels)
        return float(torch.linalg.eigvalsh(gram)[-1]) / 4 + self.ridge


@lru_cache(maxsize=2)
def mushrooms(ridge: float, dtype: torch.dtype = torch.float32) -> Logistic:
    """The whole data set; label 1 is edible."""
    features, labels = load_mushrooms()
    return Logistic(torch.tensor(features, dtype=dtype), torch.tensor(labels - 1, dtype=dtype), ridge)


def split(whole: Logistic, workers: int, how: str, seed: int) -> list[Logistic]:
    """Shares of nearly equal size: by label, so that workers see different worlds, or at random."""
    labels = whole.labels.numpy()
    order = (
        np.argsort(labels, kind="stable")
        if how == "label-sorted"
        else np.random.RandomState(seed).permutation(len(labels))
    )
    return [_take(whole, rows) for rows in np.array_split(order, workers)]


@lru_cache(maxsize=2)
def without(whole: Logistic, share: float, seed: int) -> tuple[Logistic, Logistic]:
    """The rows without a share of them drawn at random, and that share."""
    order = np.random.RandomState(seed).permutation(len(whole.labels))
    cut = round(share * len(order))
    return _take(whole, np.sort(order[cut:])), _take(whole, np.sort(order[:cut]))


def _take(whole: Logistic, rows: Sequence[int] | np.ndarray) -> Logistic:
    index = torch.as_tensor(np.asarray(rows))
    return Logistic(whole.features[index], whole.labels[index], whole.ridge)
