"""Tables of addresses that C kernels read live until the kernel returns: another thread may allocate meanwhile."""

import ctypes

import numpy as np
import torch

from thinwire.compressors import QSGD
from thinwire.core import Key, LayerBatch, TensorSpec
from thinwire.kernels import batches
from thinwire.kernels.native import calls_batches, calls_code_batches, calls_factor_batches

LAYERS = 5


class ReadingLibrary:
    """Allocates as another thread might while C runs, then reads the table of outputs, its last argument."""

    def __init__(self):
        self.read = []

    def __getattr__(self, name):
        def kernel(*arguments):
            taken = [np.full(LAYERS, 7, dtype=np.int64) for _ in range(50)]
            self.read = list((ctypes.c_int64 * LAYERS).from_address(arguments[-1]))
            assert len(taken) == 50
            return -1

        return kernel


def test_outputs_of_a_sparse_mean_are_known_until_it_returns():
    tensors, outs, library = (
        [torch.randn(40) for _ in range(LAYERS)],
        [torch.empty(40) for _ in range(LAYERS)],
        ReadingLibrary(),
    )
    payload = batches.take_largest_many(tensors, None, [4] * LAYERS).payload
    calls_batches.sparse_mean_many(library, [payload, payload], [(4, 4)] * LAYERS, outs)
    assert library.read == [out.data_ptr() for out in outs]


def test_copies_of_a_sparse_sum_are_known_until_it_returns():
    tensors, bases, outs = ([torch.randn(40) for _ in range(LAYERS)] for _ in range(3))
    library, counts = ReadingLibrary(), [4] * LAYERS
    payload = batches.take_largest_many(tensors, None, counts).payload
    calls_batches.add_sparse_many(library, bases, [payload, payload], [(k, k) for k in counts], outs)
    assert library.read == [out.data_ptr() for out in outs]


def test_outputs_of_factors_are_known_until_they_are_multiplied():
    forms, library = [(2, 6, 5)] * LAYERS, ReadingLibrary()
    outs = [torch.empty(6, 5) for _ in range(LAYERS)]
    lefts, rights = torch.randn(LAYERS * 12), torch.randn(LAYERS * 10)
    calls_factor_batches.low_rank_many(library, lefts, rights, forms, outs, False)
    assert library.read == [out.data_ptr() for out in outs]


def test_outputs_of_a_mean_of_codes_are_known_until_it_returns():
    part, library = QSGD(bits=4), ReadingLibrary()
    tensors, outs = ([torch.randn(40) for _ in range(LAYERS)] for _ in range(2))
    batch = LayerBatch(tensors, tuple(TensorSpec(f"l{i}", (40,)) for i in range(LAYERS)), [()] * LAYERS)
    payload = part.encode_many(batch, [Key(i) for i in range(LAYERS)]).payload
    assert calls_code_batches.mean_codes_many(library, part.code_form, [payload, payload], outs)
    assert library.read == [out.data_ptr() for out in outs]
