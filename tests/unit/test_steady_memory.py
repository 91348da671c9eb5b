"""After the first steps, an exchange finds all the memory of a layer's size that it needs."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from thinwire.catalog import parse
from thinwire.core import TensorSpec, World, loopback
from thinwire.exchange import Exchanger
from thinwire.kernels import native
from thinwire.kernels.memory import Pool

SIDE = 700
ALONE = World(0, 1)


@pytest.mark.skipif(not native.runnable_builds(), reason="no C kernels were built here")
@pytest.mark.parametrize(
    "text", ["ef(topk(density=0.01))", "ef(powersgd(rank=4))", "ef(qsgd(bits=4))", "ef(uniform(bits=8))", "ef(sign)"]
)
def test_no_memory_of_a_layers_size_is_allocated_after_the_first_steps(text, monkeypatch):
    gradient, room = torch.randn(SIDE, SIDE), torch.empty(SIDE, SIDE)
    exchanger = Exchanger([TensorSpec("w", (SIDE, SIDE))], parse(text))

    def step(number):
        loopback(exchanger.begin(number, ALONE))
        loopback(exchanger.exchange({"w": gradient}, number, ALONE, into={"w": room}))
        exchanger.settle()

    for number in range(3):
        step(number)
    fresh = []
    take = Pool._take

    def watched(pool, num_bytes):
        found = take(pool, num_bytes)
        if found is None:
            fresh.append(num_bytes)
        return found

    monkeypatch.setattr(Pool, "_take", watched)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step(3)
    large = [event.name for event in seen.events() if event.cpu_memory_usage >= gradient.nbytes / 2]
    assert not large and not fresh, (large, fresh)
