"""Laws find what is wrong: for each suite a part that breaks one law. And what another package has of the suites."""

import subprocess
import sys
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings

from thinwire import World, parse
from thinwire.aggregators import GatherMean
from thinwire.catalog import REGISTRY, register
from thinwire.catalog.tables import BUILT_IN
from thinwire.compressors import TopK
from thinwire.controllers import Fixed
from thinwire.core import (
    AllReduce,
    CompositionError,
    Contract,
    Part,
    Payload,
    Reduced,
    ThinwireError,
    reduce_and_subtract,
)
from thinwire.feedback import ErrorFeedback
from thinwire.testing import (
    AGGREGATOR_LAWS,
    COMPRESSOR_LAWS,
    CONTROLLER_LAWS,
    DECODER_LAWS,
    MEMORY_LAWS,
    REQUEST_LAWS,
    TOPOLOGY_LAWS,
    check_capabilities,
    check_compressor,
    check_controller,
    check_request,
    check_topology,
    composition_texts,
    compressor_texts,
    keep_registry,
    without_batches,
)
from thinwire.testing.examples import example_texts
from thinwire.testing.strategies import tensors
from thinwire.topologies import Ring

SUITES = [
    COMPRESSOR_LAWS, DECODER_LAWS, AGGREGATOR_LAWS, MEMORY_LAWS, CONTROLLER_LAWS, TOPOLOGY_LAWS, REQUEST_LAWS,
]  # fmt: skip


def named(suite, name):
    """The laws of that name, in all of their cases."""
    found = [law for law in suite if law.check.__name__ == name]
    assert found
    return found


@dataclass(frozen=True)
class Boasting(TopK):
    """It promises more than it keeps."""

    def contract(self, spec):
        return Contract(delta=0.99)


@dataclass(frozen=True)
class Trusting(TopK):
    """It decodes whatever comes."""

    def encode(self, tensor, key):
        return Payload.of([Part("values", tensor.flatten().contiguous(), 8.0 * tensor.element_size() * tensor.numel())])

    def decode(self, payload, spec, key):
        return payload.parts[0][: spec.numel].reshape(spec.shape)


def test_a_contract_that_is_not_kept_is_found():
    (law,) = named(COMPRESSOR_LAWS, "contraction_holds")
    law(TopK(density=0.1))
    with pytest.raises(AssertionError, match="gaussian"):
        law(Boasting(density=0.1))
    with pytest.raises(AssertionError):
        check_compressor(Boasting(density=0.1))


def test_a_decoder_that_checks_nothing_is_found():
    (law,) = named(DECODER_LAWS, "a_mutated_payload_is_refused_or_decodes_to_a_finite_tensor")
    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        law(Trusting(density=0.1))


class LeakState(NamedTuple):
    residual: torch.Tensor
    inner: object


@dataclass(frozen=True)
class Leaking(ErrorFeedback):
    """It forgets a tenth of what it did not send."""

    def reduce(self, tensor, spec, state, ctx):
        out, rest = yield from reduce_and_subtract(self.inner, tensor, state.residual, spec, state.inner, ctx)
        return Reduced(out.value, out.sent, LeakState(0.9 * rest, out.state))


def test_a_memory_that_leaks_is_found():
    (law,) = named(MEMORY_LAWS, "nothing_is_lost_over_a_thousand_steps")
    with pytest.raises(AssertionError, match="not close"):
        law(Leaking(parse("topk(density=0.1)")))


@dataclass(frozen=True)
class Rounding(TopK):
    """Its batch rounds what is left, and misses what is not finite."""

    def encode_many(self, batch, keys):
        encoded = super().encode_many(batch, keys)
        rests = None if encoded.residuals is None else [rest.half().float() for rest in encoded.residuals]
        return encoded._replace(residuals=rests, first_bad=-1)


def test_a_batch_that_differs_from_the_plain_form_is_found():
    same, dropped = (
        named(AGGREGATOR_LAWS, name)[0]
        for name in (
            "a_batch_sends_the_same_bytes_and_gives_the_same_bits",
            "a_bad_layer_drops_the_step_of_a_batch_as_that_of_the_plain_form",
        )
    )
    composition = ErrorFeedback(GatherMean(Rounding(density=0.1)))
    with pytest.raises(AssertionError, match="step 0: another state"):
        same(composition)
    with pytest.raises((AssertionError, ThinwireError)):  # what it sends of such a layer is void
        dropped(composition)
    with pytest.raises(AssertionError, match="declares BATCHES_LAYERS but does not show it"):
        check_capabilities(composition)
    with pytest.raises(AssertionError, match="shows BATCHES_LAYERS but does not declare it"):
        check_capabilities(without_batches(parse("ef(sign())")))


@dataclass(frozen=True)
class Partial(Fixed):
    """It decides by what one rank alone knows."""

    def replan(self, plan, state, ctx):
        yield from ()
        return dict.fromkeys(plan, ctx.world.rank % 2), state


def test_a_controller_that_decides_by_rank_is_found():
    with pytest.raises(Exception, match=r"."):  # ranks that send other things are a ProtocolError before plans differ
        check_controller(Partial())


@dataclass(frozen=True)
class Greedy(Ring):
    """Nobody's weights sum to one over all ranks: all listen to rank 0."""

    def weights(self, world: World, step: int):
        return {world.rank: 1.0} if world.size == 1 else {world.rank: 0.5, 0: 0.5} if world.rank else {0: 0.9, 1: 0.1}


def test_a_topology_whose_columns_do_not_sum_to_one_is_found():
    check_topology(Ring())
    with pytest.raises(AssertionError):
        check_topology(Greedy())


class Secretive(AllReduce):
    def describe_form(self):
        return f"AllReduce of rank {float(self.tensor.flatten()[0])}"


def test_a_request_on_which_ranks_cannot_agree_is_found():
    check_request(lambda rank, size, place: AllReduce(torch.arange(3.0) + rank + place))
    with pytest.raises(Exception, match="rank"):
        check_request(lambda rank, size, place: Secretive(torch.arange(3.0) + rank + place))


@settings(max_examples=50, deadline=None)
@given(tensors())
def test_drawn_tensors_are_finite(tensor):
    assert bool(tensor.isfinite().all())


def test_laws_have_names_of_their_own_and_are_plain_functions():
    for suite in SUITES:
        names = [str(law) for law in suite]
        assert names and len(set(names)) == len(names)
        assert all(callable(law.check) and law.check.__module__.startswith("thinwire.testing.") for law in suite)


@pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: entry.name)
def test_every_part_of_ours_has_examples_that_are_read(entry):
    assert example_texts(entry)
    if entry.kind in ("compressor", "aggregator", "memory"):
        assert all(parse(text) for text in example_texts(entry))


def test_a_registered_part_is_covered_by_being_registered():
    with keep_registry():
        register("boasting", Boasting, examples=["k=3", "density=0.5"])
        assert {"boasting(k=3)", "boasting(density=0.5)"} <= set(compressor_texts())
        assert "ef(boasting(k=3))" in composition_texts()
    assert "boasting" not in REGISTRY.registrations


def test_a_part_that_needs_settings_and_has_no_examples_is_named():
    @dataclass(frozen=True)
    class Needy(TopK):
        level: int = 0

    @dataclass(frozen=True)
    class Needier:
        level: int
        encode = decode = contract = num_bytes = TopK.encode

    with keep_registry():
        register("needy", Needy, examples=["k=1"])
        register("needier", Needier)
        with pytest.raises(CompositionError, match=r"needier needs its level.*register\('needier', Needier, examples="):
            compressor_texts()


def test_without_its_extra_it_says_what_to_install():
    code = """
import importlib.util
real = importlib.util.find_spec
for missing in ("pytest", "hypothesis"):
    importlib.util.find_spec = lambda name, *rest: None if name == missing else real(name, *rest)
    try:
        import thinwire.testing
    except ImportError as error:
        print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.splitlines() == [
        f"MissingExtra thinwire.testing needs {missing}: pip install 'thinwire[testing]'"
        for missing in ("pytest", "hypothesis")
    ]
