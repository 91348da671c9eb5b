"""The gradient of the same logistic regression, several times as fast where rows repeat in parts: for solvers."""

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
    """Columns in two halves, each half with every distinct row once: a product looks up sums that were taken once.

    The mushrooms' 8124 rows have 648 and 244 distinct halves. Equal to Logistic up to rounding, not to the bit. Mostly
    in numpy, which takes half of torch's time for arrays as short as these.
    """

    halves: tuple[Numbers, Numbers]  # distinct rows of the columns up to a cut, and of those from there on
    codes: tuple[NDArray[np.int64], NDArray[np.int64]]  # (rows,): which of the distinct halves each row has
    slope: Numbers  # features^T labels / rows, the same at every point
    ridge: float

    @classmethod
    def of(cls, problem: Logistic) -> FactoredLogistic:
        """Cut where the distinct halves have the fewest numbers."""
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
        torch.from_numpy(chances).sigmoid_()  # where the scores lie; numpy's exponentials take twice as long
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
