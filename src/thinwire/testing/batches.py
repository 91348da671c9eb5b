"""Laws of aggregators that batch layers: the plain form, one program per layer, is the definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import (
    Aggregator,
    Capability,
    Context,
    Label,
    LayerBatch,
    Payload,
    Program,
    ReducedBatch,
    Request,
    TensorSpec,
    World,
    capabilities_of,
    derive_key,
    fuse,
    has,
    reduce_one,
)
from ..drivers.lockstep import lockstep
from ..exchange import Exchanger
from ..wire import as_bytes, pack_payload
from .aggregators import AGGREGATOR_LAWS
from .laws import law
from .tensors import draw
from .worlds import make_default_plan

SHAPES = ((1,), (7,), (20, 15), (50, 100), (250, 280))
KINDS = ("gaussian", "zeros", "denormals", "heavy tails", "one huge", "sparse")
STEPS = 3
_INIT_KEY = "init"  # frozen: makes the random bits


class Sent(NamedTuple):
    """What a rank sent in one message: its form, labels and data.

    Payloads are compared as they are framed. Of tensors that are reduced, the layers may be in another order.
    """

    form: str
    labels: list[Label]
    data: list[bytes]


class BatchResult(NamedTuple):
    """What a rank has after a step of a batch."""

    sent: list[Sent]
    values: list[Tensor]
    contributions: list[Tensor]
    states: list[Any]


def draw_layers(number: int) -> list[Tensor]:
    """A tensor of each of SHAPES; kinds take turns with the number."""
    return [_draw(KINDS[(number + i) % len(KINDS)], shape, number) for i, shape in enumerate(SHAPES)]


def _draw(kind: str, shape: tuple[int, ...], seed: int) -> Tensor:
    return draw("gaussian", shape, seed=seed) * 1e-40 if kind == "denormals" else draw(kind, shape, seed=seed)


def layer_specs() -> tuple[TensorSpec, ...]:
    return tuple([TensorSpec(f"layer{i}", shape) for i, shape in enumerate(SHAPES)])


def run_batch(
    aggregator: Any, tensors: Sequence[Sequence[Tensor]], states: Sequence[Sequence[Any]], step: int, batched: bool
) -> list[BatchResult]:
    """Run one step of all layers on all ranks in lockstep: as a batch, or in the plain form."""
    size = len(tensors)
    plan = dict.fromkeys([spec.name for spec in layer_specs()], make_default_plan(aggregator)["layer"])

    def program(rank: int) -> Program[BatchResult]:
        batch = LayerBatch(tensors[rank], layer_specs(), states[rank])
        ctx, sent = Context(step, World(rank, size), seed=3, plan=plan), list[Sent]()
        if batched:
            (out,) = yield from record_requests(fuse([aggregator.reduce_many(batch, ctx)]), sent)
            outs = [(out, i) for i in range(len(SHAPES))]
        else:
            each = [reduce_one(aggregator, batch.select([i]), ctx) for i in range(len(SHAPES))]
            outs = [(out, 0) for out in (yield from record_requests(fuse(each), sent))]
        return _read_results(sent, outs, batched)

    return list(lockstep([program(rank) for rank in range(size)]))


def _read_results(sent: list[Sent], outs: Sequence[tuple[ReducedBatch, int]], batched: bool) -> BatchResult:
    layers = [out.layer(i) for out, i in outs]
    values = [torch.full(shape, 7.0) for shape in SHAPES]
    if batched:
        outs[0][0].write_values(values)
    else:
        for value, layer in zip(values, layers, strict=True):
            layer.write_value(value)
    return BatchResult(sent, values, [layer.sent for layer in layers], [out.states[i] for out, i in outs])


def record_requests(program: Program[Any], sent: list[Sent]) -> Program[Any]:
    """The same program; what it sends is added to a list."""
    answer = None
    while True:
        try:
            request = program.send(answer)
        except StopIteration as done:
            return done.value
        sent += [_read_request(member) for member in request.members()]
        answer = yield request


def _read_request(request: Request) -> Sent:
    values = [getattr(request, field.name) for field in fields(request)]  # type: ignore[arg-type]  # all are dataclasses
    data, labels = [each for value in values if _is_data(value) for each in _bytes(value)], request.labels
    if [len(each) for each in data] != [sum(label.num_bytes for label in labels)]:  # it has the lengths of parts, too
        return Sent(request.describe_form(), list(labels), data)
    ends = list(accumulate([label.num_bytes for label in labels]))
    cut = sorted((label, data[0][end - label.num_bytes : end]) for label, end in zip(labels, ends, strict=True))
    return Sent(request.describe_form(), [label for label, _ in cut], [each for _, each in cut])


def _is_data(value: Any) -> bool:
    """Whether a field of a request is what is sent."""
    first = value[0] if isinstance(value, tuple | list) and value else value
    return isinstance(first, Payload | Tensor)


def _bytes(value: Any) -> list[bytes]:
    """The bytes of payloads, as they are framed, and of tensors; other values as texts."""
    if isinstance(value, Payload):
        return [pack_payload(value).numpy().tobytes()]
    if isinstance(value, Tensor):
        return [as_bytes(value).numpy().tobytes()]
    if isinstance(value, tuple | list | dict):
        return [each for inside in (value.items() if isinstance(value, dict) else value) for each in _bytes(inside)]
    return [repr(value).encode()]


def have_same_bits(one: Any, other: Any) -> bool:
    """Whether two states or tensors are equal, signs of zeros included."""
    return _bytes(one) == _bytes(other)


@law(AGGREGATOR_LAWS, size=(1, 2, 3))
def a_batch_sends_the_same_bytes_and_gives_the_same_bits(aggregator: Aggregator[Any], size: int) -> None:
    if not has(aggregator, Capability.BATCHES_LAYERS):
        return
    states = [[aggregator.init(spec, derive_key(_INIT_KEY)) for spec in layer_specs()] for _ in range(size)]
    for step in range(STEPS):
        tensors = [draw_layers(step + STEPS * rank) for rank in range(size)]
        many, plain = (run_batch(aggregator, tensors, states, step, batched) for batched in (True, False))
        for one, other in zip(many, plain, strict=True):
            assert one.sent == other.sent, f"step {step}: another message: {_differences(one.sent, other.sent)}"
            assert have_same_bits(one.values, other.values), f"step {step}: another average"
            assert have_same_bits(one.contributions, other.contributions), f"step {step}: something else was sent"
            assert have_same_bits(one.states, other.states), f"step {step}: another state"
        states = [out.states for out in many]


def _differences(one: list[Sent], other: list[Sent]) -> list[str]:
    """The fields of messages that differ."""
    if len(one) != len(other):
        return [f"{len(one)} requests instead of {len(other)}"]
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
    return [f"{name} of {a.form}" for a, b in pairs for name in a._fields if getattr(a, name) != getattr(b, name)]


def without_batches(part: Any) -> Any:
    """Copy a part so that an Exchanger runs its plain form.

    Args:
        part: an aggregator that may batch layers.

    Returns:
        The same part, of a class that does not declare BATCHES_LAYERS.
    """
    plain, declared = copy(part), capabilities_of(part) - {Capability.BATCHES_LAYERS}
    plain.__dict__.pop("capabilities", None)
    object.__setattr__(plain, "__class__", type(type(part).__name__, (type(part),), {"capabilities": declared}))
    return plain


@law(AGGREGATOR_LAWS, spoil=(float("nan"), float("inf")))
def a_bad_layer_drops_the_step_of_a_batch_as_that_of_the_plain_form(aggregator: Aggregator[Any], spoil: float) -> None:
    if not has(aggregator, Capability.BATCHES_LAYERS):
        return
    worlds = [[Exchanger(layer_specs(), part) for _ in range(2)] for part in (aggregator, without_batches(aggregator))]

    def run(number: int, change: Callable[[list[list[Tensor]]], None]) -> list[list[dict[str, Tensor]]]:
        tensors = [draw_layers(number + STEPS * rank) for rank in range(2)]
        change(tensors)
        named = [dict(zip([spec.name for spec in layer_specs()], each, strict=True)) for each in tensors]
        return [
            lockstep([e.run_step(named[rank], number, World(rank, 2)) for rank, e in enumerate(exchangers)])
            for exchangers in worlds
        ]

    def spoil_one(tensors: list[list[Tensor]]) -> None:
        tensors[1][3][7, 5] = spoil

    many, plain = run(0, lambda tensors: None)
    assert all(map(have_same_bits, many, plain))
    before = [[e.state_dict()["layers"] for e in exchangers] for exchangers in worlds]
    for outs in run(1, spoil_one):
        assert all(bool(value.isnan().all()) for out in outs for value in out.values())
    for exchangers, states in zip(worlds, before, strict=True):
        assert [e.state_dict()["skipped_steps"] for e in exchangers] == [1, 1]
        assert all(have_same_bits(e.state_dict()["layers"], old) for e, old in zip(exchangers, states, strict=True))
    many, plain = run(2, lambda tensors: None)
    assert all(map(have_same_bits, many, plain))
