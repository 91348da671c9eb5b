"""Compressors give the same payloads and decoded tensors with C kernels and without."""

import pytest
import torch

from helpers.cases import COMPRESSOR_TEXTS, KINDS, compressors, draw
from thinwire import TensorSpec
from thinwire.core import derive_key
from thinwire.kernels import dispatch, native
from thinwire.wire import as_bytes

pytestmark = pytest.mark.skipif(not native.runnable_builds(), reason="no C kernels were built here")
KEY = derive_key("with and without")


def observe(compressor):
    """Everything that a compressor makes of some tensors, as bytes."""
    for kind in KINDS:
        for shape, dtype in (((33, 5), torch.float32), ((1000,), torch.float32), ((7,), torch.bfloat16)):
            tensor = draw(kind, shape, dtype)
            payload = compressor.encode(tensor, KEY)
            decoded = compressor.decode(payload, TensorSpec.of("layer", tensor), KEY)
            yield [as_bytes(part.contiguous().flatten()).tolist() for part in (*payload.parts, decoded)]


@pytest.mark.parametrize("compressor", compressors(), ids=COMPRESSOR_TEXTS)
def test_payloads_and_decoded_tensors_are_the_same_with_and_without_c(compressor, monkeypatch):
    for name in native.runnable_builds():
        monkeypatch.setattr(dispatch, "library", lambda name=name: native.load(name))
        ours = list(observe(compressor))
        monkeypatch.setattr(dispatch, "library", lambda: None)
        assert ours == list(observe(compressor)), name
