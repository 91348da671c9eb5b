"""Laws of aggregators and memories, over random tensors and worlds of several sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core import (
    Aggregator,
    Context,
    TensorSpec,
    World,
    derive_key,
    flatten_state,
    target_of,
    topology_of,
    tracks_peer_copies,
)
from ..drivers.lockstep import lockstep
from ..drivers.meter import Meter
from ..exchange import Exchanger
from .laws import Law, check_all, law
from .lockstep import assert_same, reduce_all, restore_from_bytes
from .tensors import KINDS, draw

AGGREGATOR_LAWS: list[Law] = []
MEMORY_LAWS: list[Law] = []  # of memories that send the residual later: error feedback


def check_aggregator(aggregator: Aggregator[Any]) -> None:
    """Check all laws of aggregators.

    Args:
        aggregator: a whole composition.

    Raises:
        AssertionError: a law is broken.
    """
    assert isinstance(aggregator, Aggregator), f"{aggregator!r} lacks init or reduce"
    check_all(AGGREGATOR_LAWS, aggregator)


def check_memory(memory: Aggregator[Any]) -> None:
    """Check all laws of aggregators, and that the residual is sent later.

    Args:
        memory: error feedback around an aggregator.

    Raises:
        AssertionError: a law is broken.
    """
    check_aggregator(memory)
    check_all(MEMORY_LAWS, memory)


def tensors_in(state: Any) -> list[Tensor]:
    return [leaf for leaf in flatten_state(state).values() if isinstance(leaf, Tensor)]


@law(AGGREGATOR_LAWS, size=(1, 2, 5))
def the_mean_of_what_was_sent_is_what_all_ranks_get(aggregator: Aggregator[Any], size: int) -> None:
    for kind in ("gaussian", "sparse", "zeros", "constant"):
        tensors = [draw(kind, (33, 5), torch.float64, seed) for seed in range(size)]
        outs = reduce_all(aggregator, tensors)
        mean_sent = torch.stack([out.sent.double() for out in outs]).sum(0) / size
        mean_value = torch.stack([out.value.double() for out in outs]).sum(0) / size
        torch.testing.assert_close(mean_value, mean_sent, rtol=1e-6, atol=1e-9)
        if topology_of(aggregator) is None:
            assert all(torch.equal(out.value, outs[0].value) for out in outs), "replicas must be equal to the last bit"


@law(AGGREGATOR_LAWS, dtype=(torch.float32, torch.float16, torch.bfloat16))
def finite_tensors_leave_finite_memories(aggregator: Aggregator[Any], dtype: torch.dtype) -> None:
    for kind in KINDS:
        for shape in ((), (0,), (9,), (20, 3)):
            states = None
            for step in range(3):
                tensors = [draw(kind, shape, dtype, 10 * step + rank) for rank in range(2)]
                outs = reduce_all(aggregator, tensors, states, step)
                states = [out.state for out in outs]
                assert all(bool(t.isfinite().all()) for state in states for t in tensors_in(state)), (kind, shape)


@law(AGGREGATOR_LAWS)
def labels_account_for_every_byte(aggregator: Aggregator[Any]) -> None:
    meters = [Meter() for _ in range(3)]
    reduce_all(aggregator, [draw("gaussian", (40, 6), seed=rank) for rank in range(3)], meters=meters)
    for meter in meters:
        labelled = sum(t.payload_bytes for where, t in meter.rows.items() if where.layer == "layer")
        assert labelled == meter.total().payload_bytes > 0
        assert meter.total().sent_bytes >= meter.total().payload_bytes


@law(AGGREGATOR_LAWS)
def a_bad_step_gives_nan_everywhere_and_changes_no_memory(aggregator: Aggregator[Any]) -> None:
    size, layers = 3, [TensorSpec("a", (12,)), TensorSpec("b", (3, 4))]
    exchangers = [Exchanger(layers, aggregator) for _ in range(size)]
    mixing = topology_of(aggregator) is not None  # then the other ranks go on without the one that is bad

    def step(number: int, spoil: float | None = None) -> list[dict[str, Tensor]]:
        tensors = [{s.name: draw("gaussian", s.shape, seed=7 * number + r) for s in layers} for r in range(size)]
        if spoil is not None:
            tensors[1]["a"][5] = spoil
        pairs = enumerate(zip(exchangers, tensors, strict=True))
        return list(lockstep([e.run_step(t, number, World(r, size)) for r, (e, t) in pairs]))

    step(0)
    before = [e.state_dict() for e in exchangers]
    for spoil in (float("nan"), float("inf"), -float("inf")):
        for rank, out in enumerate(step(1, spoil)):
            if not mixing or rank == 1:
                assert all(bool(value.isnan().all()) for value in out.values())
            else:
                assert all(bool(value.isfinite().all()) for value in out.values()), "partners go on without that rank"
    for rank in (1,) if mixing else range(size):  # under mixing the others' memories have moved on
        old, new = before[rank], exchangers[rank].state_dict()
        assert new["skipped_steps"] == old["skipped_steps"] + 3
        kept, now = ({what: state[what] for what in ("layers", "importance")} for state in (old, new))
        if tracks_peer_copies(aggregator):  # its own copy at the neighbors is unchanged
            kept, now = ({n: m["own_estimate"] for n, m in state["layers"].items()} for state in (kept, now))
        assert_same(kept, now)
    assert all(bool(v.isfinite().all()) for out in step(2) for v in out.values())


@law(AGGREGATOR_LAWS)
def a_resumed_run_continues_bit_for_bit(aggregator: Aggregator[Any]) -> None:
    layers = [TensorSpec("w", (20, 3)), TensorSpec("v", (7,), torch.bfloat16)]

    def run(exchangers: list[Exchanger], steps: range) -> list[dict[str, Tensor]]:
        outs: list[dict[str, Tensor]] = []
        for number in steps:
            tensors = [{s.name: draw("gaussian", s.shape, s.dtype, 31 * number + r) for s in layers} for r in range(2)]
            pairs = enumerate(zip(exchangers, tensors, strict=True))
            outs = list(lockstep([e.run_step(t, number, World(r, 2)) for r, (e, t) in pairs]))
        return outs

    straight = [Exchanger(layers, aggregator, seed=5) for _ in range(2)]
    expected = run(straight, range(8))
    first = [Exchanger(layers, aggregator, seed=5) for _ in range(2)]
    run(first, range(5))
    stored = [restore_from_bytes(e.state_dict()) for e in first]
    second = [Exchanger(layers, aggregator, seed=5) for _ in range(2)]
    for exchanger, state in zip(second, stored, strict=True):
        exchanger.load_state_dict(state)
    resumed = run(second, range(5, 8))
    for a, b in zip(expected, resumed, strict=True):
        assert_same(a, b)
    for one, other in zip(straight, second, strict=True):
        assert_same(one.state_dict(), other.state_dict())


@law(MEMORY_LAWS)
def nothing_is_lost_over_a_thousand_steps(memory: Aggregator[Any]) -> None:
    """Sum of sent + what would be sent for a zero tensor = sum of tensors."""
    spec, zeros = TensorSpec("layer", (24,), torch.float64), torch.zeros(24, dtype=torch.float64)
    state, total, sent = memory.init(spec, derive_key(0)), zeros.clone(), zeros.clone()
    generator = torch.Generator().manual_seed(1)
    for step in range(1000):
        tensor = torch.randn(24, generator=generator, dtype=torch.float64)
        (out,) = reduce_all(memory, [tensor], [state], step)
        state, total, sent = out.state, total + tensor, sent + out.sent
    owed = target_of(memory, zeros, spec, state, Context(1000, World(0, 1), seed=3, plan={"layer": 0}))
    torch.testing.assert_close(sent + owed, total, rtol=1e-9, atol=1e-9 * float(owed.abs().max() + 1))
