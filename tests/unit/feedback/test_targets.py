"""`Exchanger.targets` says what a layer would send now: compared with what the inner part is really given."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from helpers.cases import draw
from thinwire import Exchanger, TensorSpec, World, lockstep
from thinwire.aggregators import Adapt, DensitySchedule, GatherMean, Switch
from thinwire.compressors import TopK
from thinwire.controllers import Fixed
from thinwire.core import cast_saturating
from thinwire.feedback import DGC, EF21, SCAM, ErrorFeedback

GIVEN: dict[int, torch.Tensor] = {}  # by rank


@dataclass(frozen=True)
class Spy:
    """An aggregator that notes what it is given."""

    compressor: TopK = field(default_factory=lambda: TopK(density=0.2))

    def init(self, spec, key):
        return GatherMean(self.compressor).init(spec, key)

    def reduce(self, tensor, spec, state, ctx):
        GIVEN[ctx.world.rank] = tensor.clone()
        return (yield from GatherMean(self.compressor).reduce(tensor, spec, state, ctx))


@dataclass(frozen=True)
class ChoosingSpy(TopK):
    """A compressor that notes what it chooses by, which is what SCAM would like to send."""

    def select(self, scores, key):
        GIVEN[0 if 0 not in GIVEN else 1] = scores.clone()
        return super().select(scores, key)


MEMORIES = {
    "none": Spy(),
    "ef": ErrorFeedback(Spy()),
    "ef bf16": ErrorFeedback(Spy(), residual_dtype="bf16"),
    "ef int8": ErrorFeedback(Spy(), residual_dtype="int8"),
    "dgc": DGC(Spy()),
    "dgc with clip": DGC(Spy(), clip=0.5),
    "ef21": EF21(Spy()),
    "ef around ef21": ErrorFeedback(EF21(Spy())),
    "scam": SCAM(GatherMean(ChoosingSpy(density=0.2))),
    "switch around ef": Switch((GatherMean(TopK(density=0.1)), ErrorFeedback(Spy())), controller=Fixed(default=1)),
    "ef around switch": ErrorFeedback(Switch((GatherMean(TopK(density=0.1)), Spy()), controller=Fixed(default=1))),
    "adapt around ef21": Adapt((EF21(Spy()),), controller=Fixed(default=3)),
    "scheduled around dgc": DensitySchedule(DGC(Spy())),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("name", MEMORIES)
def test_targets_are_what_the_inner_part_is_given(name, dtype):
    spec = TensorSpec("w", (5, 8), dtype)
    workers = [Exchanger([spec], MEMORIES[name]) for _ in range(2)]
    for step in range(4):
        tensors = [draw("gaussian", spec.shape, dtype, seed=10 * step + rank) for rank in range(2)]
        targets = [w.targets({"w": t}, World(r, 2))["w"] for r, (w, t) in enumerate(zip(workers, tensors, strict=True))]
        GIVEN.clear()
        lockstep([w.run_step({"w": tensors[r]}, step, World(r, 2)) for r, w in enumerate(workers)])
        for rank in range(2):
            given = GIVEN[rank].view(spec.shape)
            assert targets[rank].dtype == spec.work_dtype
            torch.testing.assert_close(cast_saturating(targets[rank], given.dtype), given, rtol=0, atol=0)


@dataclass(frozen=True)
class Looks(Fixed):
    """A controller that asks for the target of what was exchanged."""

    def observe(self, spec, observation, state, ctx):
        GIVEN[10 + ctx.world.rank] = observation.target()
        return state


@pytest.mark.parametrize("name", MEMORIES)
def test_a_controller_observes_the_same_target(name):
    spec = TensorSpec("w", (5, 8))
    default = {"switch around ef": 1, "ef around switch": 1, "adapt around ef21": 3}.get(name, 0)
    worker = Exchanger([spec], MEMORIES[name], Looks(default=default))
    worker.set_layer_callback(lambda *_: None)
    for step in range(3):
        GIVEN.clear()
        lockstep([worker.run_step({"w": draw("gaussian", spec.shape, seed=step)}, step, World(0, 1))])
        torch.testing.assert_close(GIVEN[10], GIVEN[0].view(spec.shape), rtol=0, atol=0)
