"""The cost of a controller, measured quickly, and the estimates of errors."""

import torch

from thinwire.catalog import parse
from thinwire.compressors import QSGD, Uniform
from thinwire.compressors.blocks import SAMPLE_NUMEL
from thinwire.controllers.estimates import compute_errors
from thinwire.core import Key, TensorSpec
from thinwire_lab.bench import controller_cost


def test_the_cost_of_a_controller_is_measured_for_a_small_model():
    gradients = {"a": torch.randn(64, 64), "b": torch.randn(40, 64), "bias": torch.randn(64)}
    cost = controller_cost.measure("gpt", "mixture", gradients, 0.1, 0.0)
    assert cost.layers == 2 and cost.options == 114
    assert cost.decide_ms > 0 and cost.share > 0
    assert 0 <= cost.difference <= cost.max_difference
    assert "mixture" in controller_cost.table([cost])


def test_some_blocks_tell_the_error_of_all_within_a_few_percent():
    layer = torch.randn(1024, 8 * SAMPLE_NUMEL // 1024) * torch.randn(1024, 1).exp()  # rows of different sizes
    spec = TensorSpec.of("layer", layer)
    for kind in (QSGD, Uniform):
        options = [parse(f"gather({kind.__name__.lower()}(bits={bits}))") for bits in (2, 4, 8)]
        some, all_of_it = (compute_errors(options, layer, spec, Key(3), exact) for exact in (False, True))
        assert ((some - all_of_it).abs() < 0.05 * all_of_it).all()
        assert not torch.equal(some, all_of_it)


def test_small_layers_are_tried_out_whole():
    layer = torch.randn(32, 64)
    spec = TensorSpec.of("layer", layer)
    options = [parse(f"gather(qsgd(bits={bits}))") for bits in (2, 4, 8)]
    some, all_of_it = (compute_errors(options, layer, spec, Key(3), exact) for exact in (False, True))
    assert torch.equal(some, all_of_it)
