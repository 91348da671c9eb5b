"""The vector w: how much each coordinate of a layer is worth to the next step. Its operators are compressors."""

from .layers import LayerImportance
from .objectives import FunctionObjective, ModuleObjective, Objective, Point, same_randomness, untouched
from .refresher import Refresher
from .sets import Box, ScaledSimplex, Simplex, Within
from .solver import ImportanceSolver, Solution

__all__ = [
    "ImportanceSolver", "Solution", "Refresher",
    "Objective", "FunctionObjective", "ModuleObjective", "Point", "untouched", "same_randomness",
    "Simplex", "ScaledSimplex", "Box", "Within", "LayerImportance",
]  # fmt: skip
