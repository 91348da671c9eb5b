"""A faster gradient of logistic regression for data with few distinct half rows, for solvers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .logistic import Logistic

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FactoredLogistic:
    """Logistic regression with the columns in two halves; each distinct half row is multiplied once.

    The 8124 rows of the mushrooms have 648 and 244 distinct halves. Equal to Logistic up to rounding, not bit for bit.
    Uses numpy, which takes half of torch's time for such short arrays.
    """

    halves: tuple[Numbers, Numbers]  # distinct rows of the left and of the right columns
    codes: tuple[NDArray[np.int64], NDArray[np.int64]]  # (rows,): index of the distinct half of each row
    slope: Numbers  # features^T labels / rows, independent of the weights
    ridge: float

    @classmethod
    def of(cls, problem: Logistic) -> FactoredLogistic:
        """Split the columns where the distinct halves have the fewest elements."""
        columns = problem.features.shape[1]
        places = range(columns // 4, 3 * columns // 4 + 1, max(1, columns // 16))
        halves, codes = min(
            (_split_columns(problem.features, at) for at in places), key=lambda cut: sum(h.size for h in cut[0])
        )
        slope = problem.features.T @ problem.labels / len(problem.labels)
        return cls(halves, codes, slope.double().numpy(), problem.ridge)

    def gradient(self, weights: Tensor) -> Tensor:
        (left, right), (left_codes, right_codes) = self.halves, self.codes
        at, cut = weights.double().numpy(), left.shape[1]
        chances = (left @ at[:cut]).take(left_codes)
        chances += (right @ at[cut:]).take(right_codes)
        torch.from_numpy(chances).sigmoid_()  # in place; numpy's exp takes twice as long
        sums = (
            np.bincount(left_codes, chances, len(left)) @ left,
            np.bincount(right_codes, chances, len(right)) @ right,
        )
        gradient = np.concatenate(sums) / len(chances) - self.slope + self.ridge * at
        return torch.from_numpy(gradient).to(weights.dtype)


def _split_columns(
    features: Tensor, at: int
) -> tuple[tuple[Numbers, Numbers], tuple[NDArray[np.int64], NDArray[np.int64]]]:
    left, left_codes = torch.unique(features[:, :at].double(), dim=0, return_inverse=True)
    right, right_codes = torch.unique(features[:, at:].double(), dim=0, return_inverse=True)
    return (left.numpy(), right.numpy()), (left_codes.numpy(), right_codes.numpy())
