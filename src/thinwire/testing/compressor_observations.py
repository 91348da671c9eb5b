"""Observed capabilities of compressors, on random tensors. None: it cannot be observed on this one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..compressors.residual import encode_and_subtract
from ..compressors.sparse import values_key
from ..core import Capability, Compressor, LayerBatch, Payload, TensorSpec
from ..core.payloads import join
from ..wire import encode_indices
from .probes import KEY, bias_energy, gaussian, heavy_tails, key_at, rank_one, send_probe

MIN_NONZERO_SHARE = 0.55  # of the coordinates
MIN_SCALE = 2.1  # the largest decoded number over the largest of the tensor, if kept numbers are scaled
BIAS = 0.01  # of the energy: more than rounding causes
NEAR = 0.1  # of an expected size, or of an error
BATCH = ((1,), (33, 5), (700,))  # layers of a batch
LARGE = (512, 512)  # estimates are for large tensors


def has_methods(part: Any, *names: str) -> bool:
    return all(callable(getattr(part, name, None)) for name in names)


def is_exact(part: Compressor) -> bool:
    samples = (gaussian(33, 5), gaussian(33, 5, dtype=torch.float64), heavy_tails(33, 5), gaussian(6, 4))
    return all(torch.equal(send_probe(part, x), x) for x in samples)


def is_additive(part: Compressor) -> bool:
    return _adds(part, 33, 5) and _adds(part, 6, 4)


def _adds(part: Compressor, *shape: int) -> bool:
    x, y = (gaussian(*shape, seed=seed, dtype=torch.float64) for seed in (1, 2))
    spec, one, two = TensorSpec.of("x", x), part.encode(x, KEY), part.encode(y, KEY)
    if [p.shape for p in one.parts] != [p.shape for p in two.parts]:
        return False
    if not all(p.dtype.is_floating_point for p in one.parts):
        return False
    total = Payload(tuple(a + b for a, b in zip(one.parts, two.parts, strict=True)))
    separate = part.decode(one, spec, KEY) + part.decode(two, spec, KEY)
    return torch.allclose(part.decode(total, spec, KEY), separate, rtol=1e-9, atol=1e-9)


def sends_every_coordinate(part: Compressor) -> bool | None:
    """Most decoded coordinates are not zero, at any scale, and none depends on numbers that are far away."""
    if not is_exact(part) and torch.equal(send_probe(part, gaussian(4096)), gaussian(4096)):
        return None  # made for tensors of another shape; this one is sent as it is
    for scale in (1.0, 1e-3):
        x = gaussian(4096) * scale
        other = torch.cat([x[:2048], 1000 * scale * gaussian(2048, seed=1)])
        y, z = send_probe(part, x), send_probe(part, other)
        if float((y != 0).double().mean()) <= MIN_NONZERO_SHARE or not torch.equal(y[:1024].sign(), z[:1024].sign()):
            return False
    return True


def selects_coordinates(part: Any) -> bool:
    if not has_methods(part, "select", "take", "encode_at", "decode_at", "for_shard"):
        return False
    flat = gaussian(165)
    positions = part.select(flat, KEY)
    return _same(part.encode(flat, KEY), part.encode_at(part.take(flat, positions), positions, flat.numel(), KEY))


def counts_coordinates(part: Any) -> bool:
    if not has_methods(part, "count"):
        return False
    flat, expected = gaussian(2000), part.count(2000)
    if selects_coordinates(part):
        sent = [part.select(flat, key_at(i)).numel() for i in range(8)]
    else:
        sent = [int(torch.count_nonzero(send_probe(part, flat, key_at(i)))) for i in range(8)]
    return bool(abs(sum(sent) / len(sent) - expected) <= NEAR * expected + 1)


def codes_positions(part: Any) -> bool:
    if not selects_coordinates(part) or not has_methods(part, "bounds") or not hasattr(part, "values"):
        return False
    flat = gaussian(165)
    positions = part.select(flat, KEY)
    values = part.values.encode(part.take(flat, positions), values_key(KEY))
    indices = encode_indices(positions, flat.numel()).tensor
    return _same(part.encode(flat, KEY), Payload((indices, *values.parts)))


def takes_importance(part: Any) -> bool:
    if not has_methods(part, "with_importance"):
        return False
    x = gaussian(165)
    first = torch.zeros_like(x)
    first[: x.numel() // 2] = 1 + torch.arange(x.numel() // 2)
    return not torch.equal(
        send_probe(part.with_importance(first), x), send_probe(part.with_importance(first.flip(0)), x)
    )


def scales_kept(part: Any) -> bool:
    if selects_coordinates(part):
        flat = gaussian(165)
        positions = part.select(flat, KEY)
        return not torch.allclose(part.take(flat, positions), flat[positions], rtol=1e-5)
    x = gaussian(33, 5)
    peaks = [float(send_probe(part, x, key_at(i)).abs().max()) for i in range(40)]
    return max(peaks) > MIN_SCALE * float(x.abs().max())


def has_unbounded_bias(part: Compressor) -> bool:
    x = gaussian(33, 5)
    promise = part.contract(TensorSpec.of("x", x))
    if selects_coordinates(part) or promise.delta is not None or promise.omega is not None:
        return False
    return bias_energy(x, [send_probe(part, x, key_at(i)) for i in range(20)]) > BIAS


def has_variable_size(part: Compressor) -> bool:
    """Without positions: the size of their code depends on them for every sparse compressor."""
    first = int(codes_positions(part))
    samples = (gaussian(24, 10), 1e-3 * gaussian(24, 10), heavy_tails(24, 10), rank_one(24, 10), torch.ones(24, 10))
    sizes = [
        Payload(part.encode(x, key_at(i)).parts[first:]).num_bytes for x in samples for i in range(3)
    ]  # several keys: a part may draw each coordinate at random
    return max(sizes) > min(sizes)


def expects_bytes(part: Compressor) -> bool:
    spec = TensorSpec("x", (40, 50))
    expected = part.num_bytes(spec)
    for draw in (gaussian, rank_one):
        for scale in (1e-3, 1.0, 1e3):
            sizes = [part.encode(scale * draw(40, 50, seed=i), key_at(i)).num_bytes for i in range(6)]
            if abs(sum(sizes) / len(sizes) - expected) > NEAR * expected + 3:
                return False
    return True


def fuses_residual(part: Any) -> bool:
    if not has_methods(part, "encode_with_residual"):
        return False
    x, residual = gaussian(33, 5), 0.5 * gaussian(33, 5, seed=1)
    payload, rest = part.encode_with_residual(x.clone(), residual.clone(), KEY)
    expected, left = encode_and_subtract(part, x, residual, KEY)
    return _same(payload, expected) and torch.equal(rest, left)


def decodes_mean(part: Any) -> bool:
    if not has_methods(part, "decode_mean"):
        return False
    spec, keys = TensorSpec("x", (33, 5)), [key_at(i) for i in range(3)]
    payloads = [part.encode(gaussian(33, 5, seed=i), key) for i, key in enumerate(keys)]
    total = torch.zeros(spec.shape)
    for payload, key in zip(payloads, keys, strict=True):
        total += part.decode(payload, spec, key) * (1 / 3)
    return torch.equal(part.decode_mean(payloads, spec, keys), total)


def batches_layers(part: Any) -> bool:
    """`encode_many` and `decode_mean_many` give what the methods for one layer give."""
    if not has_methods(part, "encode_many", "decode_mean_many"):
        return False
    tensors = [gaussian(*shape, seed=i) for i, shape in enumerate(BATCH)]
    specs, keys = tuple([TensorSpec(f"x{i}", shape) for i, shape in enumerate(BATCH)]), list(map(key_at, range(3)))
    encoded = part.encode_many(LayerBatch(tensors, specs, [()] * 3), keys)
    payloads = [part.encode(*pair) for pair in zip(tensors, keys, strict=True)]
    if encoded.first_bad != -1 or not _same(encoded.payload, join(payloads)):
        return False
    outs = [torch.zeros(shape) for shape in BATCH]
    part.decode_mean_many([encoded.payload.unlabeled()], specs, [keys], outs)
    alone = [part.decode(*each) for each in zip(payloads, specs, keys, strict=True)]
    return all(map(torch.equal, outs, alone))


def fuses_estimate(part: Any) -> bool:
    """`encode_many` of a batch with estimates gives what it gives for the differences."""
    if not has_methods(part, "encode_many"):
        return False
    tensors, estimates = ([gaussian(*shape, seed=s + i) for i, shape in enumerate(BATCH)] for s in (0, 5))
    specs, keys = tuple([TensorSpec(f"x{i}", shape) for i, shape in enumerate(BATCH)]), list(map(key_at, range(3)))
    fused = part.encode_many(LayerBatch(tensors, specs, [()] * 3, estimates=estimates), keys)
    differences = [x - estimate for x, estimate in zip(tensors, estimates, strict=True)]
    payloads = [part.encode(*pair) for pair in zip(differences, keys, strict=True)]
    if fused.estimates is None or not _same(fused.payload, join(payloads)):
        return False
    sent = [part.decode(*each) for each in zip(payloads, specs, keys, strict=True)]
    return all(map(torch.equal, fused.estimates, map(torch.add, estimates, sent)))


def estimates_errors(part: Any) -> bool | None:
    if not has_methods(part, "estimate_errors"):
        return False
    x = gaussian(*LARGE)
    (error,) = part.estimate_errors(x, TensorSpec.of("x", x), [part], KEY, False)
    return None if error is None else is_near(float(error), x, send_probe(part, x))


def is_near(error: float, x: Tensor, y: Tensor) -> bool:
    measured = float(torch.linalg.vector_norm(x - y, dtype=torch.float64))
    return abs(error - measured) <= NEAR * measured + 1e-6


def _same(one: Payload, two: Payload) -> bool:
    return len(one.parts) == len(two.parts) and all(map(torch.equal, one.parts, two.parts))


COMPRESSOR_OBSERVATIONS = {
    Capability.LOSSLESS: is_exact,
    Capability.ADDITIVE: is_additive,
    Capability.SENDS_EVERY_COORDINATE: sends_every_coordinate,
    Capability.SELECTS_COORDINATES: selects_coordinates,
    Capability.COUNTS_COORDINATES: counts_coordinates,
    Capability.CODES_POSITIONS: codes_positions,
    Capability.TAKES_IMPORTANCE: takes_importance,
    Capability.SCALES_KEPT: scales_kept,
    Capability.UNBOUNDED_BIAS: has_unbounded_bias,
    Capability.VARIABLE_SIZE: has_variable_size,
    Capability.EXPECTS_BYTES: expects_bytes,
    Capability.FUSES_RESIDUAL: fuses_residual,
    Capability.DECODES_MEAN: decodes_mean,
    Capability.BATCHES_LAYERS: batches_layers,
    Capability.FUSES_ESTIMATE: fuses_estimate,
    Capability.ESTIMATES_ERRORS: estimates_errors,
}
