"""Hot loops behind one door: C on the CPU where it was built, else numpy or torch (see `dispatch`). Same bits."""

from .bloom import bloom_bits, bloom_form, bloom_positions
from .codes import as_blocks
from .dispatch import (
    add_and_project,
    add_saturated,
    block_peaks,
    cheapest,
    combine_rows,
    count_below,
    decode_positions,
    encode_positions,
    exponents_decode,
    exponents_feedback,
    exponents_mean,
    largest_magnitudes,
    low_rank,
    mean_magnitude,
    natural_decode_signed,
    natural_encode,
    natural_encode_signed,
    natural_feedback,
    natural_mean,
    noise16,
    orthonormal,
    pack,
    pack_signs,
    peel,
    peeling_order,
    qsgd_decode,
    qsgd_encode,
    qsgd_feedback,
    qsgd_mean,
    reaching,
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
    take_largest,
    uniform_decode,
    uniform_encode,
    uniform_feedback,
    uniform_mean,
    unpack,
)
from .matrices import agreed_product, noise_matrix
from .packing import packed_bytes
from .positions import Coded, Taken, announced_count
from .reference import distinct_positions, largest, mix32, noise32, tree_sum
from .sketch import Order, Peeled, cells_for, median_estimate, table_cells

__all__ = [
    "Order", "Peeled", "cells_for", "median_estimate", "peel", "peeling_order", "sketch", "table_cells",
    "bloom_bits", "bloom_form", "bloom_positions",
    "reaching", "count_below",
    "add_saturated", "as_blocks", "block_peaks", "scatter", "sparse_mean", "subtract_at", "take", "take_largest",
    "pack", "packed_bytes", "pack_signs", "unpack",
    "Coded", "Taken", "announced_count", "decode_positions", "encode_positions",
    "natural_decode_signed", "natural_encode", "natural_encode_signed", "natural_feedback", "natural_mean",
    "exponents_decode", "exponents_feedback", "exponents_mean",
    "qsgd_decode", "qsgd_encode", "qsgd_feedback", "qsgd_mean",
    "uniform_decode", "uniform_encode", "uniform_feedback", "uniform_mean",
    "sign_decode", "sign_encode", "sign_feedback", "sign_mean",
    "add_and_project", "agreed_product", "combine_rows", "low_rank", "subtract_low_rank", "noise_matrix", "orthonormal",
    "cheapest",
    "distinct_positions", "largest", "largest_magnitudes", "mean_magnitude", "mix32", "noise16", "noise32", "tree_sum",
]  # fmt: skip
