"""Observed capabilities of aggregators and memories, in worlds of a few ranks. None: it cannot be observed."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..compressors import Identity
from ..core import (
    Capabilities,
    Capability,
    Compressor,
    Context,
    LayerBatch,
    Menu,
    TensorSpec,
    World,
    has,
    inherit_capabilities,
    parts_of,
    reduce_and_subtract,
    topology_of,
)
from ..topologies import mixing_matrix
from .batches import draw_layers, have_same_bits, layer_specs, run_batch
from .compressor_observations import BIAS, LARGE, NEAR, has_methods
from .memory_observations import MEMORY_OBSERVATIONS
from .probes import KEY, bias_energy, gaussian, heavy_tails, rank_one, with_zeros
from .variants import inside_has, is_leaf, make_exact, with_compressor
from .worlds import make_default_plan, run_step, run_steps, sent_bytes

ROUNDING = 1e-5  # of the largest number of a coordinate
SIZE_TOLERANCE = 0.35  # of an expected size: how often ranks select the same coordinates varies
SHAPE = (33, 5)


def is_exact(part: Any) -> bool | None:
    """The average is exact at each coordinate, also where other coordinates or the last step's are far larger."""
    made = make_exact(part)
    if made is None or any(
        not (is_leaf(inside) or has(inside, Capability.LOSSLESS)) for inside in list(parts_of(part))[1:]
    ):
        return None  # a wrapper inside may lose something
    for share in (1.0, 0.1):
        steps = [[_uneven(share, 10 * step + rank) for rank in range(3)] for step in range(2)]
        for step, (tensors, outs) in enumerate(zip(steps, run_steps(made, steps), strict=True)):
            tolerance = ROUNDING * torch.stack(tensors).abs().amax(0)
            for rank, out in enumerate(outs):
                if bool(((out.value - _average(made, tensors, rank, step)).abs() > tolerance).any()):
                    return False
    return True


def _uneven(share: float, seed: int) -> Tensor:
    """Numbers of very different size, a share of which are not zero."""
    return heavy_tails(40, 10, seed=seed) * (with_zeros(40, 10, share=share, seed=seed) != 0)


def _average(part: Any, tensors: list[Tensor], rank: int, step: int) -> Tensor:
    topology, size = topology_of(part), len(tensors)
    weights = [1 / size] * size if topology is None else mixing_matrix(topology, size, step)[rank].tolist()
    return sum((w * t.double() for w, t in zip(weights, tensors, strict=True)), torch.zeros(()))


def has_unbounded_bias(part: Any) -> bool | None:
    made = make_exact(part) if is_leaf(part) else None
    if made is None:
        return None
    tensors = [gaussian(*SHAPE, seed=rank) for rank in range(2)]
    outcomes = [run_step(made, tensors, seed=seed) for seed in range(6)]
    means = [torch.stack([out.value for out in outs]).mean(0) for outs in outcomes]
    return bias_energy(torch.stack(tensors).mean(0), means) > BIAS


def wraps_compressor(part: Any) -> bool:
    """It has a field `compressor`, and the compressor put there encodes."""
    names = [field.name for field in fields(part)] if is_dataclass(part) else []
    if "compressor" not in names or not isinstance(part.compressor, Compressor):
        return False
    recorded: list[Tensor] = []
    recording: Any = replace(part, compressor=_Recorder(part.compressor, recorded))
    run_step(recording, [gaussian(*SHAPE, seed=rank) for rank in range(2)])
    return bool(recorded)


class _Recorder:
    """A compressor that records the tensors it encodes."""

    def __init__(self, inner: Compressor, recorded: list[Tensor]) -> None:
        self.inner, self.recorded = inner, recorded
        self.decode, self.contract, self.num_bytes = inner.decode, inner.contract, inner.num_bytes

    @property
    def capabilities(self) -> Capabilities:
        return inherit_capabilities(self.inner, Capability.ADDITIVE)

    def encode(self, tensor: Tensor, key: Any) -> Any:
        self.recorded.append(tensor)
        return self.inner.encode(tensor, key)


def sends_one_payload(part: Any) -> bool:
    """It makes one request, equal for all ranks, of as many bytes as the compressor's payload."""
    if not wraps_compressor(part):
        return False
    x, world = gaussian(*SHAPE), World(0, 2)
    program = part.reduce(x, TensorSpec.of("layer", x), part.init(TensorSpec.of("layer", x), KEY), Context(0, world))
    request = next(program)
    if request.scope() is not None:  # some ranks only
        return False
    num_bytes = sum(label.num_bytes for label in request.labels)
    try:
        program.send(request.answer_if_identical(world.size))
    except StopIteration:
        return bool(num_bytes == part.compressor.encode(x, Context(0, world).key("layer", 0)).num_bytes)
    return False


def sums_nonzeros(part: Any) -> bool:
    """It averages sparse tensors exactly, in fewer bytes than dense ones have."""
    made = with_compressor(part, Identity()) if wraps_compressor(part) else None
    if made is None:
        return False
    tensors = [with_zeros(4000, share=0.01, seed=rank) for rank in range(2)]
    mean = torch.stack(tensors).mean(0)
    right = all(torch.allclose(out.value, mean, atol=1e-5) for out in run_step(made, tensors))
    return right and sent_bytes(made, tensors) < 0.9 * tensors[0].nbytes


def has_variable_size(part: Any) -> bool | None:
    """Its own bytes depend on the numbers; those of a compressor inside are not counted."""
    made = make_exact(part) if is_leaf(part) else None
    if made is None:
        return None
    samples = [[with_zeros(4000, share=share, seed=rank) for rank in range(2)] for share in (0.01, 0.3, 1.0)]
    return len({sent_bytes(made, tensors) for tensors in samples}) > 1


def expects_bytes(part: Any) -> bool:
    if not has_methods(part, "expected_bytes"):
        return False
    expected = part.expected_bytes(TensorSpec("layer", (40, 50)), 3)
    for draw in (gaussian, rank_one):
        for scale in (1e-3, 1.0, 1e3):
            sent = sent_bytes(part, [scale * draw(40, 50, seed=rank) for rank in range(3)])
            if abs(sent - expected) > SIZE_TOLERANCE * expected + 3:
                return False
    return True


def fuses_residual(part: Any) -> bool:
    if not has_methods(part, "reduce_with_residual"):
        return False
    tensors = [gaussian(*SHAPE, seed=rank) for rank in range(2)]
    rests = [0.5 * gaussian(*SHAPE, seed=5 + rank) for rank in range(2)]

    def fused(tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Any:
        rest = rests[ctx.world.rank].clone()
        return (yield from part.reduce_with_residual(tensor.clone(), rest, spec, state, ctx))

    def plain(tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Any:
        return (yield from reduce_and_subtract(part, tensor, rests[ctx.world.rank], spec, state, ctx))

    pairs = zip(run_step(part, tensors, reduce=fused), run_step(part, tensors, reduce=plain), strict=True)
    return all(
        torch.allclose(one.value, two.value, atol=1e-5) and torch.allclose(rest, other, atol=1e-5)
        for (one, rest), (two, other) in pairs
    )


def batches_layers(part: Any) -> bool:
    """`reduce_many` gives what `reduce` gives for each layer. It may be there although a part inside cannot."""
    if not has_methods(part, "reduce_many"):
        return False
    states = [[part.init(spec, KEY) for spec in layer_specs()] for _ in range(2)]
    tensors = [draw_layers(rank) for rank in range(2)]
    try:
        many = run_batch(part, tensors, states, 0, batched=True)
    except Exception:
        return False
    return all(map(have_same_bits, many, run_batch(part, tensors, states, 0, batched=False)))


def fuses_estimate(part: Any) -> bool:
    """`reduce_many` of a batch with estimates sends differences and returns the next estimates."""
    if not has_methods(part, "reduce_many"):
        return False
    x, estimate = gaussian(*SHAPE), gaussian(*SHAPE, seed=5)

    def fused(tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Any:
        return (yield from part.reduce_many(LayerBatch([tensor], (spec,), [state], estimates=[estimate]), ctx))

    try:
        (out,) = run_step(part, [x], reduce=fused)
    except Exception:
        return False  # a part inside cannot
    (plain,) = run_step(part, [x - estimate])
    if out.estimates is None:
        return False
    return torch.equal(out.estimates[0], estimate + plain.sent) and torch.equal(out.layer(0).value, plain.value)


def estimates_errors(part: Any) -> bool | None:
    if not has_methods(part, "estimate_errors"):
        return False
    x = gaussian(*LARGE)
    (error,) = part.estimate_errors(x, TensorSpec.of("layer", x), [part], KEY, False)
    if error is None:
        return None
    measured = float(torch.linalg.vector_norm(x - run_step(part, [x])[0].value, dtype=torch.float64))
    return abs(float(error) - measured) <= 2 * NEAR * measured


def tracks_peer_copies(part: Any) -> bool | None:
    """A rank with a bad tensor changes its memory nevertheless, from the payloads of the other ranks."""
    if inside_has(part, Capability.TRACKS_PEER_COPIES):
        return None
    return any(
        out.state_if_excluded is not None for out in run_step(part, [gaussian(*SHAPE, seed=rank) for rank in range(3)])
    )


def flattens_layers(part: Any) -> bool | None:
    if inside_has(part, Capability.FLATTENS_LAYERS):
        return None
    x = gaussian(*SHAPE)
    spec, ctx = TensorSpec.of("layer", x), Context(0, World(0, 2), plan=make_default_plan(part), can_flatten=True)
    request = next(part.reduce(x, spec, part.init(spec, KEY), ctx), None)
    return request is not None and request.expands


def has_menu(part: Any) -> bool:
    return isinstance(getattr(part, "menu", None), Menu) and hasattr(part, "controller")


AGGREGATOR_OBSERVATIONS = {
    Capability.LOSSLESS: is_exact,
    Capability.UNBOUNDED_BIAS: has_unbounded_bias,
    Capability.WRAPS_COMPRESSOR: wraps_compressor,
    Capability.SENDS_ONE_PAYLOAD: sends_one_payload,
    Capability.SUMS_NONZEROS: sums_nonzeros,
    Capability.VARIABLE_SIZE: has_variable_size,
    Capability.EXPECTS_BYTES: expects_bytes,
    Capability.FUSES_RESIDUAL: fuses_residual,
    Capability.BATCHES_LAYERS: batches_layers,
    Capability.FUSES_ESTIMATE: fuses_estimate,
    Capability.ESTIMATES_ERRORS: estimates_errors,
    Capability.TRACKS_PEER_COPIES: tracks_peer_copies,
    Capability.FLATTENS_LAYERS: flattens_layers,
    Capability.HAS_MENU: has_menu,
} | MEMORY_OBSERVATIONS
