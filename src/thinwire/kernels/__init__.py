"""Hot loops behind one door: C on the CPU where it was built (see `dispatch`), else torch expressions. Same bits."""

from .bloom import bloom_bits, bloom_form, bloom_positions
from .codes import as_blocks
from .dispatch import (
    add_largest,
    add_saturated,
    block_peaks,
    count_below,
    exponents_decode,
    exponents_feedback,
    exponents_mean,
    gap_sum,
    largest_magnitudes,
    low_rank,
    mean_magnitude,
    natural_decode_signed,
    natural_encode,
    natural_encode_signed,
    natural_feedback,
    natural_mean,
    noise16,
    ones,
    pack,
    pack_signs,
    peel,
    peeling_order,
    qsgd_decode,
    qsgd_encode,
    qsgd_feedback,
    qsgd_mean,
    reaching,
    rice_decode,
    rice_encode,
    scatter,
    sign_decode,
    sign_encode,
    sign_feedback,
    sign_mean,
    sketch,
    sparse_mean,
    subtract_at,
    subtract_low_rank,
    take,
    uniform_decode,
    uniform_encode,
    uniform_feedback,
    uniform_mean,
    unpack,
)
from .matrices import agreed_product, noise_matrix, orthonormal
from .packing import packed_bytes
from .reference import distinct_positions, largest, mix32, noise32, tree_sum
from .sketch import Order, Peeled, cells_for, median_estimate, table_cells

__all__ = [
    "Order", "Peeled", "cells_for", "median_estimate", "peel", "peeling_order", "sketch", "table_cells",
    "bloom_bits", "bloom_form", "bloom_positions",
    "reaching", "count_below",
    "add_largest", "add_saturated", "as_blocks", "block_peaks", "scatter", "sparse_mean", "subtract_at", "take",
    "pack", "packed_bytes", "pack_signs", "unpack", "ones", "gap_sum", "rice_decode", "rice_encode",
    "natural_decode_signed", "natural_encode", "natural_encode_signed", "natural_feedback", "natural_mean",
    "exponents_decode", "exponents_feedback", "exponents_mean",
    "qsgd_decode", "qsgd_encode", "qsgd_feedback", "qsgd_mean",
    "uniform_decode", "uniform_encode", "uniform_feedback", "uniform_mean",
    "sign_decode", "sign_encode", "sign_feedback", "sign_mean",
    "agreed_product", "low_rank", "subtract_low_rank", "noise_matrix", "orthonormal",
    "distinct_positions", "largest", "largest_magnitudes", "mean_magnitude", "mix32", "noise16", "noise32", "tree_sum",
]  # fmt: skip
