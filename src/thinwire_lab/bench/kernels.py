"""`thinwire bench kernels`: kernels in multiples of one memory copy, in C and as the torch expressions behind them.

CPU time of one thread. Each repetition copies the tensor, then runs the kernel; the figure is the median of the
ratios, in which most noise of the machine cancels. Payloads and results are allocated in every repetition, as in
training.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from thinwire.core import Key, derive_key
from thinwire.kernels import codes, dispatch, matrices, native, positions
from thinwire.kernels.sketch import cells_for, peel, peeling_order, sketch

_BENCH_KEY = "bench kernels"  # frozen: makes the random bits

DENSITY, BITS, EVEN_BITS, BLOCK, RANKS, RANK = 0.01, 4, 8, 512, 8, 4
WINDOW = 16  # of natural compression with 8 bits
Work = Callable[[], object]


@dataclass(frozen=True)
class KernelRow:
    """Times of one kernel, in copies of its tensor."""

    kernel: str
    native: float
    reference: float


def make_cases(kernels: ModuleType, tensor: Tensor) -> Iterator[tuple[str, Work]]:
    """Name and prepared call of every kernel."""
    numel, key = tensor.numel(), derive_key(_BENCH_KEY)
    k = max(1, int(DENSITY * numel))
    sparse = dispatch if kernels is dispatch else positions
    residual = tensor.flip(0) * 0.5
    yield "top-k 1 %", partial(kernels.largest_magnitudes, tensor, k)
    yield "top-k 1 %, with feedback", partial(sparse.take_largest, tensor, residual, k)
    places = codes.largest_magnitudes(tensor, k)
    kept = tensor[places]
    yield "top-k 1 %, decode", partial(kernels.scatter, kept, places, numel)
    coded = positions.encode_positions(places, numel).data
    yield f"top-k 1 %, mean of {RANKS}", partial(_mean(sparse, "sparse_mean"), copies(kept), copies(coded), numel)
    yield "all above a level: 1 %", partial(kernels.positions_reaching, tensor, float(kept.abs().min()))
    yield (
        "sketch of 1 %, encode and peel",
        partial(_sketch_and_peel, kernels is dispatch, kept.double(), places, key),
    )
    packed, norms = codes.qsgd_encode(tensor, BITS, BLOCK, key)
    yield "QSGD-4 encode", partial(kernels.qsgd_encode, tensor, BITS, BLOCK, key)
    yield "QSGD-4 with feedback", partial(kernels.qsgd_feedback, tensor, residual, BITS, BLOCK, key)
    yield "QSGD-4 decode", partial(kernels.qsgd_decode, packed, norms, numel, BITS, BLOCK)
    several = copies(packed), copies(norms)
    yield f"QSGD-4 mean of {RANKS}", partial(_mean(kernels, "qsgd_mean"), *several, numel, BITS, BLOCK)
    even, peaks = codes.uniform_encode(tensor, EVEN_BITS, BLOCK, False, key)
    yield "uniform-8 encode", partial(kernels.uniform_encode, tensor, EVEN_BITS, BLOCK, False, key)
    yield "uniform-8 with feedback", partial(kernels.uniform_feedback, tensor, residual, EVEN_BITS, BLOCK, False, key)
    yield "uniform-8 decode", partial(kernels.uniform_decode, even, peaks, numel, EVEN_BITS, BLOCK)
    yield (
        f"uniform-8 mean of {RANKS}",
        partial(_mean(kernels, "uniform_mean"), copies(even), copies(peaks), numel, EVEN_BITS, BLOCK),
    )
    signed = codes.natural_encode_signed(tensor, key, WINDOW)
    yield "natural-8 encode", partial(kernels.natural_encode_signed, tensor, key, WINDOW)
    yield "natural-8 with feedback", partial(kernels.natural_feedback, tensor, residual, key, WINDOW)
    yield "natural-8 decode", partial(kernels.natural_decode_signed, signed, WINDOW)
    yield f"natural-8 mean of {RANKS}", partial(_mean(kernels, "natural_mean"), copies(signed), WINDOW)
    side = math.isqrt(numel)
    square, rest = (flat[: side * side].view(side, side) for flat in (tensor, residual))
    start = square[:RANK].contiguous()
    yield f"PowerSGD-{RANK} step with feedback", partial(_power_step, kernels, square, rest, start)
    signs, scale = codes.sign_encode(tensor)
    yield "signs alone", partial(kernels.pack_signs, tensor)
    yield "sign encode", partial(kernels.sign_encode, tensor)
    yield "sign with feedback", partial(kernels.sign_feedback, tensor, residual)
    yield "sign decode", partial(kernels.sign_decode, signs, scale.reshape(1), numel)
    yield f"sign mean of {RANKS}", partial(_mean(kernels, "sign_mean"), copies(signs), copies(scale.reshape(1)), numel)


def _mean(kernels: ModuleType, name: str) -> Callable[..., Tensor]:
    """The mean kernel with newly allocated memory, because the dispatched form reuses memory of its pool."""
    mean: Callable[..., Tensor] = getattr(kernels, name)
    return partial(mean, None) if kernels is dispatch else mean


def copies(part: Tensor) -> list[Tensor]:
    """Separate copies, because payloads of other ranks are not in the cache either."""
    return [part.clone() for _ in range(RANKS)]


def _sketch_and_peel(in_c: bool, values: Tensor, places: Tensor, key: Key) -> object:
    """Sketch and peel one rank's values; the reference implementation is numpy's."""
    cells = cells_for(places.numel())
    if in_c:
        return dispatch.peel(dispatch.sketch(values, places, cells, key), dispatch.peeling_order(places, cells, key))
    return peel(sketch(values, places, cells, key), peeling_order(places, cells, key))


def _power_step(kernels: ModuleType, matrix: Tensor, residual: Tensor, start: Tensor) -> Tensor:
    """The computation of aggregators.powersgd without communication."""
    basis_of = dispatch.orthonormalize if kernels is dispatch else matrices.orthonormalize
    target, projected = kernels.add_and_project(matrix, residual, start)
    basis = basis_of(projected).to(torch.float32)
    kernels.subtract_low_rank(target, basis, kernels.combine_rows(basis, target))
    return target  # type: ignore[no-any-return]


def time_in_copies(work: Work, tensor: Tensor, repetitions: int) -> float:
    """Median of (CPU time of work / CPU time of a copy)."""
    there, quotients = torch.empty_like(tensor), []
    work()
    for _ in range(repetitions):
        copy = _seconds(partial(there.copy_, tensor))
        quotients.append(_seconds(work) / copy)
    return statistics.median(quotients)


def _seconds(work: Work) -> float:
    start = time.process_time()
    work()
    return max(time.process_time() - start, 1e-9)


def measure(mb: float, repetitions: int = 9) -> list[KernelRow]:
    numel = max(1, int(mb * 1e6 / 4))
    tensor = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pairs = zip(make_cases(dispatch, tensor), make_cases(codes, tensor), strict=True)
        return [
            KernelRow(
                name, time_in_copies(fast, tensor, repetitions), time_in_copies(plain, tensor, max(3, repetitions // 3))
            )
            for (name, fast), (_, plain) in pairs
        ]
    finally:
        torch.set_num_threads(threads)


def to_json(mb: float, rows: Sequence[KernelRow]) -> dict[str, Any]:
    return {"mb": mb, "kernels": native.describe_kernels(), "unit": "copies", "rows": [asdict(row) for row in rows]}


def write_json(file: Path, mb: float, rows: Sequence[KernelRow]) -> None:
    file.write_text(json.dumps(to_json(mb, rows), indent=1) + "\n", encoding="utf-8")
