"""Signatures of the functions of kernels.c, which ctypes checks at every call."""

from __future__ import annotations

import ctypes

_P, _L, _I, _W, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_uint32, ctypes.c_float

# in the order of kernels.c: result, arguments
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "tw_mark": (_W, ()),
    "tw_set_threads": (None, (_I, _L)),
    "tw_started_threads": (_L, ()),
    "tw_noise16": (None, (_W, _W, _L, _P)),
    "tw_pack_bits": (None, (_P, _L, _I, _P)),
    "tw_unpack_bits": (None, (_P, _L, _I, _P)),
    "tw_pack_signs": (None, (_P, _L, _P)),
    "tw_sign_encode": (_F, (_P, _L, _F, _F, _P, _L, _P)),
    "tw_sign_feedback": (_F, (_P, _P, _P, _L, _F, _F, _P, _L, _P)),
    "tw_sign_decode": (None, (_P, _L, _F, _P)),
    "tw_sign_mean": (None, (_P, _P, _L, _L, _F, _P)),
    "tw_qsgd_encode": (None, (_P, _L, _L, _I, _W, _W, _I, _F, _P, _P)),
    "tw_qsgd_feedback": (None, (_P, _P, _P, _L, _L, _I, _W, _W, _F, _P, _P)),
    "tw_qsgd_decode": (None, (_P, _P, _L, _L, _I, _P)),
    "tw_qsgd_mean": (None, (_P, _P, _L, _L, _L, _I, _F, _P)),
    "tw_uniform_encode": (None, (_P, _L, _L, _I, _W, _W, _I, _F, _P, _P)),
    "tw_uniform_feedback": (None, (_P, _P, _P, _L, _L, _I, _W, _W, _I, _F, _P, _P)),
    "tw_uniform_decode": (_I, (_P, _P, _L, _L, _I, _P)),
    "tw_uniform_mean": (_I, (_P, _P, _L, _L, _L, _I, _F, _P)),
    "tw_natural_encode": (None, (_P, _L, _W, _W, _I, _I, _W, _P)),
    "tw_natural_decode": (None, (_P, _L, _I, _P)),
    "tw_natural_mean": (None, (_P, _L, _L, _I, _F, _P)),
    "tw_natural_feedback": (None, (_P, _P, _P, _L, _W, _W, _I, _P)),
    "tw_exponents_decode": (None, (_P, _P, _L, _P)),
    "tw_exponents_mean": (None, (_P, _P, _L, _L, _F, _P)),
    "tw_exponents_feedback": (None, (_P, _P, _P, _L, _W, _W, _I, _P, _P)),
    "tw_largest": (None, (_P, _L, _L, _P)),
    "tw_reaching": (_L, (_P, _L, _F, _P)),
    "tw_count_below": (_L, (_P, _L, _F)),
    "tw_low_rank": (None, (_P, _P, _L, _L, _L, _P)),
    "tw_subtract_low_rank": (None, (_P, _P, _P, _L, _L, _L)),
    "tw_add_and_project": (None, (_P, _P, _P, _L, _L, _L, _P, _P)),
    "tw_combine_rows": (None, (_P, _P, _L, _L, _L, _P)),
    "tw_orthonormal": (None, (_P, _L, _L, ctypes.c_double, _P, _P, _L)),
    "tw_scatter": (_L, (_P, _P, _L, _P, _L)),
    "tw_take": (_L, (_P, _L, _P, _L, _P)),
    "tw_subtract_at": (_L, (_P, _L, _P, _P, _L)),
    "tw_ones": (None, (_P, _L, _P)),
    "tw_encode_positions": (_L, (_P, _L, _L, _I, _I, _P)),
    "tw_decode_positions": (_I, (_P, _L, _L, _L, _I, _P)),
    "tw_take_largest": (_L, (_P, _P, _L, _L, _I, _I, _P, _P, _P, _P)),
    "tw_sparse_mean": (_I, (_P, _P, _P, _P, _L, _L, _I, _F, _P)),
    "tw_add_saturated": (None, (_P, _P, _L, _P)),
    "tw_block_peaks": (None, (_P, _L, _L, _P)),
    "tw_sketch": (None, (_P, _P, _L, _L, _L, _P, _P)),
    "tw_sketch_whole": (None, (_P, _P, _L, _L, _L, _P, _P)),
    "tw_peel": (_L, (_P, _L, _P, _P, _L, _P, _P, _L, _P)),
    "tw_peel_whole": (_L, (_P, _L, _P, _P, _L, _P, _P, _L, _P)),
    "tw_keep_options": (_L, (_P, _P, _L, _L, _L, _P, _P, _P)),
    "tw_cheapest": (None, (_P, _P, _P, _L, _L, _P, _P)),
    "tw_peeling_order": (_L, (_P, _L, _L, _L, _P, _P, _P, _P, _P, _P, _P)),
    # batched.c
    "tw_take_largest_many": (_L, (_L, *(_P,) * 11)),
    "tw_add_many": (_L, (_L, *(_P,) * 4)),
    "tw_kth_magnitudes": (_I, (_L, *(_P,) * 4)),
    "tw_reaching_many": (None, (_L, *(_P,) * 5)),
    "tw_ones_many": (None, (_L, *(_P,) * 4)),
    "tw_take_at_many": (_I, (_L, *(_P,) * 6, _I, *(_P,) * 3)),
    "tw_sparse_mean_many": (_L, (_L, _L, *(_P,) * 6, _F, _P)),
    "tw_subtract_many": (_L, (_L, *(_P,) * 4)),
    "tw_take_changes_many": (_L, (_L, *(_P,) * 11)),
    "tw_add_sparse_many": (_L, (_L, _L, *(_P,) * 6, _F, *(_P,) * 3)),
    "tw_project_many": (_L, (_L, *(_P,) * 8)),
    "tw_combine_many": (_I, (_L, *(_P,) * 5, ctypes.c_double, _P, _P)),
    "tw_low_rank_many": (None, (_L, *(_P,) * 5, _I, _P)),
    "tw_framed_bytes": (_L, (_P, _L)),
    "tw_pack_parts": (None, (_P, _P, _L, _P)),
    "tw_unpack_parts": (_I, (_P, _L, _L, _P, _P)),
    # batched_codes.c
    "tw_encode_codes_many": (_L, (_P, _L, _F, *(_P,) * 8)),
    "tw_mean_codes_many": (_L, (_P, _L, _L, _P, _P, _P, _F, _P)),
}


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Set the signatures of a library's functions; returns it."""
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
