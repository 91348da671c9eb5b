"""What worker processes do with the parts of another package; they load no more than that."""

from __future__ import annotations

import importlib
import sys

import thinwire
from options_jobs import ddp_of, train, weights
from thinwire.catalog import REGISTRY


def attach_outside(driver, place, text):
    """Train a DDP model through a composition, given as text and as an object. The parts stay registered here."""
    digests, reports = [], []
    sys.path.insert(0, place)
    importlib.invalidate_caches()
    REGISTRY.plugins.reset()
    try:
        for wanted in (text, thinwire.parse(text)):
            model = ddp_of(driver)
            wire = thinwire.attach(model, wanted)
            train(model, driver, 3)
            digests.append(weights(model))
            reports.append(str(wire.report()))
            wire.detach()
    finally:
        sys.path.remove(place)
        REGISTRY.plugins.reset()
    return digests, reports
