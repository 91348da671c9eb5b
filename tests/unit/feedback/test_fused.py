"""Fewer passes, the same bits: residuals and means that parts work out themselves against their definitions."""

from dataclasses import dataclass

import pytest
import torch

from helpers.cases import COMPRESSOR_TEXTS, KINDS, draw
from helpers.other_cpu import digest, ordinary_product, run_elsewhere
from thinwire import TensorSpec, World, lockstep
from thinwire.aggregators.dense import Dense
from thinwire.aggregators.density_schedule import DensitySchedule
from thinwire.aggregators.gather_mean import GatherMean
from thinwire.aggregators.switch import Switch
from thinwire.catalog import parse_compressor
from thinwire.compressors.residual import encode_and_subtract
from thinwire.core import Capability, Context, Payload, decodes_mean, derive_key, encodes_with_residual, has
from thinwire.feedback.error_feedback import ErrorFeedback

FUSED = [text for text in COMPRESSOR_TEXTS if encodes_with_residual(parse_compressor(text))]
MEANS = [text for text in COMPRESSOR_TEXTS if decodes_mean(parse_compressor(text))]
SHAPES = ((), (0,), (1,), (33, 5), (5000,))
KEY = derive_key("fused")


def same(one, other):
    """To the last bit: signs tell zeros apart, too."""
    flat, expected = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(flat, expected)


def test_the_expected_compressors_have_fused_kernels():
    names = {text.split("(")[0] for text in FUSED}
    assert names >= {"topk", "qsgd", "uniform", "natural", "sign"} and names == {text.split("(")[0] for text in MEANS}


@pytest.mark.parametrize("text", FUSED)
def test_the_fused_residual_equals_encode_decode_and_subtract(text):
    compressor = parse_compressor(text)
    for kind in KINDS:
        for shape in SHAPES:
            for dtype in (torch.float32, torch.float64):
                tensor, residual = draw(kind, shape, dtype, 1), draw("one huge", shape, dtype, 2)
                before = tensor.clone(), residual.clone()
                payload, rest = compressor.encode_with_residual(tensor, residual, KEY)
                expected, left = encode_and_subtract(compressor, tensor, residual, KEY)
                assert all(map(same, payload.parts, expected.parts)) and payload.kinds == expected.kinds
                assert payload.model_bits == expected.model_bits
                assert same(rest, left), (kind, shape, dtype)
                assert same(tensor, before[0]) and same(residual, before[1])


@pytest.mark.parametrize("text", MEANS)
@pytest.mark.parametrize("size", (1, 3))
def test_the_mean_of_payloads_is_that_of_decoded_ones(text, size):
    compressor = parse_compressor(text)
    keys = [derive_key("rank", rank) for rank in range(size)]
    for kind in KINDS:
        for shape in SHAPES:
            spec = TensorSpec("layer", shape)
            payloads = [compressor.encode(draw(kind, shape, seed=r), keys[r]) for r in range(size)]
            received = [Payload(payload.parts) for payload in payloads]
            total = torch.zeros(shape)
            for payload, key in zip(received, keys, strict=True):
                total = total + compressor.decode(payload, spec, key) * (1 / size)
            assert same(compressor.decode_mean(received, spec, keys), total), (kind, shape)


@dataclass(frozen=True)
class Plain:
    """The same aggregator, but it cannot do anything but reduce."""

    inner: GatherMean

    def init(self, spec, key):
        return self.inner.init(spec, key)

    def reduce(self, tensor, spec, state, ctx):
        return self.inner.reduce(tensor, spec, state, ctx)


def some_steps(aggregator, size, dtype=torch.float32):
    spec = TensorSpec("layer", (40, 6), dtype)
    states = [aggregator.init(spec, derive_key("init")) for _ in range(size)]
    found = []
    for step in range(3):
        programs = [
            aggregator.reduce(draw("heavy tails", (40, 6), dtype, 10 * step + rank), spec, states[rank], ctx)
            for rank, ctx in enumerate(Context(step, World(r, size), 3, {"layer": 0}) for r in range(size))
        ]
        outs = lockstep(programs)
        states = [out.state for out in outs]
        found += [tensor for out in outs for tensor in (out.value, out.sent, out.state.residual)]
    return found


@pytest.mark.parametrize("text", [*FUSED, "nearest_power2()", 'cast(dtype="bf16")'])
def test_error_feedback_gives_the_same_result_in_both_forms(text):
    inner = GatherMean(parse_compressor(text))
    assert has(inner, Capability.FUSES_RESIDUAL) and not has(Plain(inner), Capability.FUSES_RESIDUAL)
    for size in (1, 3):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            fused, plain = (some_steps(ErrorFeedback(part), size, dtype) for part in (inner, Plain(inner)))
            assert all(map(same, fused, plain)), (size, dtype)


def test_parts_between_memory_and_payload_pass_the_residual_on():
    """For every option of a menu and every density of a schedule."""
    inner = GatherMean(parse_compressor("topk(density=0.1)"))
    for outer in (
        Switch((inner, Dense())),
        Switch((Plain(inner),)),
        DensitySchedule(inner, start=0.2, end=0.1, steps=2),
    ):
        assert has(outer, Capability.FUSES_RESIDUAL)
        assert all(map(same, some_steps(ErrorFeedback(outer), 3), some_steps(ErrorFeedback(Plain(outer)), 3)))


MEAN_OF_THREE = """
import sys
sys.path.insert(0, sys.argv[1])
from test_fused import means
from helpers.other_cpu import ordinary_product
print(ordinary_product(), *means())
"""


def means():
    texts = ("identity()", "natural()", "topk(density=0.1)", "qsgd()", "sign()")
    return [
        digest(tensor) for text in texts for tensor in some_steps(ErrorFeedback(GatherMean(parse_compressor(text))), 3)
    ]


def test_means_of_three_have_the_same_bits_on_another_kernel_path(request):
    """torch adds a third of a tensor with one rounding on some processors and with two on others."""
    ordinary, *there = run_elsewhere(MEAN_OF_THREE, str(request.path.parent))
    assert ordinary != ordinary_product(), "both processes multiply alike here, so this test shows nothing"
    assert there == means()
