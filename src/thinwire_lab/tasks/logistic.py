"""Logistic regression with L2 regularization (ridge), and its distribution over workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from ..data.mushrooms import load_mushrooms
from .splits import Split, split_rows


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

    def loss_and_gradient(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The same bits as `loss` and `gradient`, with one product less."""
        scores = self.features @ weights
        loss = (softplus(scores) - self.labels * scores).mean() + self.ridge / 2 * weights.square().sum()
        errors = torch.sigmoid(scores) - self.labels
        return loss, self.features.T @ errors / len(self.labels) + self.ridge * weights

    def accuracy(self, weights: Tensor) -> Tensor:
        return ((self.features @ weights > 0) == (self.labels > 0.5)).to(torch.float64).mean()

    @cached_property
    def smoothness(self) -> float:
        """L: the largest eigenvalue of the features' Gram matrix over 4, plus the ridge."""
        gram = self.features.double().T @ self.features.double() / len(self.labels)
        return float(torch.linalg.eigvalsh(gram)[-1]) / 4 + self.ridge


@lru_cache(maxsize=2)
def mushrooms(ridge: float, dtype: torch.dtype = torch.float32) -> Logistic:
    """The mushrooms data set; label 1 is edible."""
    features, labels = load_mushrooms()
    return Logistic(torch.tensor(features, dtype=dtype), torch.tensor(labels - 1, dtype=dtype), ridge)


def split_problem(whole: Logistic, workers: int, how: str, seed: int) -> list[Logistic]:
    """One problem per worker; `how`: text of a Split."""
    return [select_rows(whole, rows) for rows in split_rows(whole.labels.numpy(), workers, Split.parse(how), seed)]


@lru_cache(maxsize=2)
def hold_out(whole: Logistic, share: float, seed: int) -> tuple[Logistic, Logistic]:
    """Split off a random fraction `share` of the rows: (rest, held-out)."""
    order = np.random.RandomState(seed).permutation(len(whole.labels))
    cut = round(share * len(order))
    return select_rows(whole, np.sort(order[cut:])), select_rows(whole, np.sort(order[:cut]))


def select_rows(whole: Logistic, rows: Tensor | NDArray[np.int64]) -> Logistic:
    """The same problem with some of its rows."""
    index = torch.as_tensor(rows)
    return Logistic(whole.features[index], whole.labels[index], whole.ridge)
