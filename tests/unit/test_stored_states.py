"""A state that an earlier version stored goes on with the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers.stored_states import STEPS, cases, load, state_of
from thinwire import checkpoint
from thinwire.kernels.native import library

STORED = Path(__file__).parent.parent / "data" / "stored"


def differences(stored, now, where=""):
    """Where what was stored then is not so now; what is new now is no difference."""
    if isinstance(stored, Mapping):
        for key, value in stored.items():
            yield from differences(value, now[key], f"{where}.{key}") if key in now else [f"{where}.{key} is missing"]
    elif isinstance(stored, list | tuple):
        if len(stored) > len(now):
            yield f"{where} has {len(now)} entries, had {len(stored)}"
        for at, (value, other) in enumerate(zip(stored, now, strict=False)):
            yield from differences(value, other, f"{where}.{at}")
    elif isinstance(stored, Tensor):
        if stored.dtype != now.dtype or not torch.equal(stored, now):
            yield f"{where} differs"
    elif stored != now:
        yield f"{where} is {now}, was {stored}"


@pytest.mark.parametrize("name", list(cases()))
def test_a_state_stored_by_an_earlier_version_gives_the_same_next_step(name):
    if name == "ef-powersgd" and library() is None:
        pytest.skip("stored with the C kernels; torch's matrix products sum in another order")
    stored, case = checkpoint.load(STORED / name), cases()[name]()
    load(case, stored["states"])
    values = case.step(STEPS)
    assert list(differences(stored["values"], values)) == []
    assert list(differences(stored["after"], state_of(case))) == []


def test_every_stored_state_is_read():
    assert sorted(path.name for path in STORED.iterdir()) == sorted(cases())
