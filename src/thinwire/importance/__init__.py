"""Importance of coordinates (Khafizov & Beznosikov, 2024): solve for w in the trial step x - γ w ⊙ g of each layer.

The compressors that use w are in `thinwire.compressors`: impk, importance_topk, importance_sampling.
"""

from .constraints import Box, ConstraintSet, ScaledSimplex, Simplex
from .layers import LayerImportance
from .objectives import FunctionObjective, ModuleObjective, Objective, Point, preserve_model, preserve_rng_state
from .refresher import Refresher
from .solver import ImportanceSolver, Solution

__all__ = [
    "ImportanceSolver", "Solution", "Refresher",
    "Objective", "FunctionObjective", "ModuleObjective", "Point", "preserve_model", "preserve_rng_state",
    "Simplex", "ScaledSimplex", "Box", "ConstraintSet", "LayerImportance",
]  # fmt: skip
