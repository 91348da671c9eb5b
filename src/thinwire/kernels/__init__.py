"""Hot loops behind one door. Today the torch reference serves every device; faster forms must give the same bits."""

from .reference import distinct_positions, largest, mean_magnitude, mix32, noise16, noise32, tree_sum

__all__ = ["distinct_positions", "largest", "mean_magnitude", "mix32", "noise16", "noise32", "tree_sum"]
