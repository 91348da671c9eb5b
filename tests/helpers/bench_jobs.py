"""What worker processes do in the tests of benchmarks."""

from __future__ import annotations

from torch import Tensor

from helpers.ddp_training import ddp_of, train
from thinwire import TorchDist
from thinwire_lab.bench.bare_hook import BareHook


def train_with_plain_ddp_and_bare_hook(driver: TorchDist, density: float, steps: int) -> list[dict[str, Tensor]]:
    """Weights of both after some steps."""
    results = []
    for is_bare in (False, True):
        model = ddp_of(driver, bucket_cap_mb=0.001)  # several buckets
        if is_bare:
            model.register_comm_hook(BareHook(density, driver.group), BareHook.hook)
        train(model, driver, steps)
        results.append({name: p.detach().clone() for name, p in model.module.named_parameters()})
    return results
