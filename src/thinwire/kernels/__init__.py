"""Hot loops behind one door. Today the torch reference serves every device; faster forms must give the same bits."""

from .bloom import bloom_bits, bloom_form, bloom_positions
from .matrices import agreed_product, noise_matrix, orthonormal
from .reference import distinct_positions, largest, mean_magnitude, mix32, noise16, noise32, tree_sum
from .sketch import Order, Peeled, cells_for, median_estimate, peel, peeling_order, sketch, table_cells

__all__ = [
    "Order", "Peeled", "cells_for", "median_estimate", "peel", "peeling_order", "sketch", "table_cells",
    "bloom_bits", "bloom_form", "bloom_positions",
    "agreed_product", "noise_matrix", "orthonormal",
    "distinct_positions", "largest", "mean_magnitude", "mix32", "noise16", "noise32", "tree_sum",
]  # fmt: skip
