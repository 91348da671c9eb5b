"""What worker processes do with the parts of another package; they load no more than that."""

from __future__ import annotations

import importlib
import sys

import thinwire
from helpers.ddp_training import Composition, ddp_of, train, weights
from helpers.jobs import digest
from helpers.local_jobs import make, teach
from helpers.options_jobs import Described, OwnTopK, said
from thinwire import TorchDist
from thinwire.catalog import REGISTRY


def attach_outside(driver: TorchDist, place: str, text: str) -> tuple[list[str], list[str]]:
    """Train a DDP model through a composition, given as text and as an object. The parts stay registered here."""
    digests, reports = [], []
    sys.path.insert(0, place)
    importlib.invalidate_caches()
    REGISTRY.plugins.reset()
    try:
        for wanted in (text, thinwire.parse(text)):
            model = ddp_of(driver)
            handle = thinwire.attach(model, wanted)
            train(model, driver, 3)
            digests.append(weights(model))
            reports.append(str(handle.report()))
            handle.detach()
    finally:
        sys.path.remove(place)
        REGISTRY.plugins.reset()
    return digests, reports


def local_with_own_parts(driver: TorchDist, differs: bool = False) -> tuple[str, str] | list[str]:
    """`local` through a bare compressor that no catalog lists, and through the same as a text; what ranks say if it differs."""
    wanted: Composition
    if differs:
        model, optimizer = make()
        wanted = OwnTopK(density=0.05, extra=0.5 + driver.world.rank)
        return said(lambda: thinwire.local(model, optimizer, composition=wanted, group=driver.group, timeout_s=5.0))
    digests = []
    for wanted in ("topk(density=0.05)", OwnTopK(density=0.05), {"*": Described(0.05)}):
        model, optimizer = make()
        with thinwire.local(model, optimizer, sync_every=2, composition=wanted, group=driver.group):
            teach(model, optimizer, driver.world.rank, 4)
        digests.append(digest(model.state_dict()))
    return digests
