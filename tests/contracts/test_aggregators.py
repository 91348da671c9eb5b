"""Every composition keeps the laws of `thinwire.testing`; error feedback loses nothing."""

import pytest
import torch

from helpers.cases import COMPOSITION_TEXTS, STRUCTURE_TEXTS, draw, family_of, one_of_each
from thinwire import TensorSpec, parse
from thinwire.core import derive_key
from thinwire.testing import AGGREGATOR_LAWS, MEMORY_LAWS, reduce_all

# short residuals keep the law in the mean only, see tests/unit/feedback/test_residuals.py
EXACT_FEEDBACK = [text for text in COMPOSITION_TEXTS if text.startswith("ef(") and "residual_dtype=" not in text]
ESTIMATE = "ef(ef21(topk(density=0.1)))"  # there `sent` is an estimate, not a message: the law does not hold


OF_STATES = ("a_bad_step_gives_nan_everywhere_and_changes_no_memory", "a_resumed_run_continues_bit_for_bit")
OF_BATCHES = "thinwire.testing.batches"  # run by test_batches.py over what batches
OF_PAYLOADS = [
    law for law in AGGREGATOR_LAWS if law.check.__name__ not in OF_STATES and law.check.__module__ != OF_BATCHES
]
USUAL = ({"size": 2}, {"dtype": torch.float32}, {})  # cases of a law that run over every composition


@pytest.mark.parametrize("text", COMPOSITION_TEXTS)
@pytest.mark.parametrize("law", [law for law in OF_PAYLOADS if law.case in USUAL], ids=str)
def test_every_composition_keeps(law, text):
    law(parse(text))


@pytest.mark.parametrize("text", one_of_each(COMPOSITION_TEXTS, family_of))
@pytest.mark.parametrize("law", [law for law in OF_PAYLOADS if law.case not in USUAL], ids=str)
def test_every_family_keeps(law, text):
    """Other numbers of ranks and half precision: one compressor of each base class in each structure will do."""
    law(parse(text))


@pytest.mark.parametrize("text", STRUCTURE_TEXTS)
@pytest.mark.parametrize("law", [law for law in AGGREGATOR_LAWS if law.check.__name__ in OF_STATES], ids=str)
def test_every_structure_keeps(law, text):
    """Compressors have no state, so one for each structure of aggregators and memories will do."""
    law(parse(text))


@pytest.mark.parametrize("text", one_of_each([text for text in EXACT_FEEDBACK if text != ESTIMATE], family_of))
@pytest.mark.parametrize("law", MEMORY_LAWS, ids=str)
def test_error_feedback_keeps(law, text):
    law(parse(text))


def test_error_feedback_is_exact_where_arithmetic_is():
    """Whole numbers are added without rounding, so here the identity holds to the last bit."""
    aggregator, total = parse("ef(topk(density=0.1))"), torch.zeros(50)
    state, sent = aggregator.init(TensorSpec("layer", (50,)), derive_key(0)), torch.zeros(50)
    generator = torch.Generator().manual_seed(2)
    for step in range(1000):
        tensor = torch.randint(-50, 51, (50,), generator=generator).float()
        (out,) = reduce_all(aggregator, [tensor], [state], step)
        state, total, sent = out.state, total + tensor, sent + out.sent
    assert torch.equal(sent + state.residual, total)


def test_ef21_shares_the_mean_of_all_beliefs_at_every_step():
    aggregator, states = parse("ef21(topk(density=0.1))"), None
    target = [draw("gaussian", (60,), torch.float64, r) for r in range(4)]
    for step in range(300):
        outs = reduce_all(aggregator, target, states, step)
        states = [out.state for out in outs]
        mean = sum(state.own_estimate for state in states) / 4
        torch.testing.assert_close(states[0].mean_estimate, mean)
    torch.testing.assert_close(states[0].own_estimate, target[0])  # estimates reach a tensor that does not change
