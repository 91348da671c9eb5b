"""Parts as objects that no catalog lists: `local` takes them as `attach` does (test_handles.py), compared over ranks."""

import pytest
import torch
from torch import nn

import thinwire
from helpers import outside_jobs as jobs
from helpers.options_jobs import Described, OwnTopK, Undescribed
from thinwire import CompositionError, moments


def test_local_takes_a_bare_compressor_of_ones_own_as_it_takes_a_text(pool):
    told = pool.run(2, jobs.local_with_own_parts, within_s=100.0)
    assert len({digest for digests in told for digest in digests}) == 1


def test_ranks_of_local_compare_parts_of_ones_own(pool):
    for kind, text in pool.run(2, jobs.local_with_own_parts, True, within_s=100.0):
        assert kind == "ConfigMismatch" and "OwnTopK(" in text and "extra=1.5" in text


def trained():
    model = nn.Linear(40, 40)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 40)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("part", [OwnTopK(density=0.5), Described(0.5)], ids=("dataclass", "signature"))
def test_moments_take_a_part_of_ones_own(part):
    _, optimizer = trained()
    handle = moments.average(optimizer, part)
    assert type(part).__name__ in str(handle.report())


def test_what_ranks_cannot_compare_is_refused_with_the_remedy_everywhere():
    model, optimizer = trained()
    for call in (
        lambda: thinwire.local(model, optimizer, composition=Undescribed()),
        lambda: moments.average(optimizer, Undescribed()),
    ):
        with pytest.raises(
            CompositionError, match=r"Undescribed is neither in the catalog nor a dataclass.*signature\(\)"
        ):
            call()
