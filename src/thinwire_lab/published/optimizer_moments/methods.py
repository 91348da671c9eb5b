"""The methods that optimizer-moments compares, with settings per layer for a requested saving."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from thinwire.catalog import DENSE_BELOW
from thinwire.core import TensorSpec
from thinwire.optimizer_state import build_pair_compressor, parse_moments

SAVINGS = (2, 4, 8, 16, 32, 100)

Setting = Callable[[TensorSpec, float], str]  # (spec of a layer's pair, requested saving) -> composition


@dataclass(frozen=True)
class MomentMethod:
    """A method under its name in tables; `savings` are those that can be requested, 0 for a fixed setting."""

    label: str
    family: str
    setting: Setting
    savings: tuple[float, ...] = SAVINGS
    general: bool = True  # whether one composition fits all layers

    def texts(self, layers: Mapping[str, TensorSpec], saving: float) -> dict[str, str]:
        """Return the composition of each layer. Vectors and small layers are sent dense."""
        return {
            name: "dense()" if len(spec.shape) < 3 or spec.numel < 2 * DENSE_BELOW else self.setting(spec, saving)
            for name, spec in layers.items()
        }


def fixed_method(label: str, family: str, text: str) -> MomentMethod:
    return MomentMethod(label, family, lambda spec, saving: text, (0,))


def num_bytes(text: str, spec: TensorSpec) -> float:
    return build_pair_compressor(parse_moments(text)).num_bytes(spec)


def choose_density(form: str) -> Setting:
    """Choose the density at which the payload has the dense size divided by the saving."""

    def setting(spec: TensorSpec, saving: float) -> str:
        low, high = 1e-5, 1.0
        max_bytes = spec.numel * spec.dtype.itemsize / saving
        for _ in range(40):
            middle = math.sqrt(low * high)
            low, high = (
                (middle, high) if num_bytes(form.format(density=f"{middle:.6f}"), spec) <= max_bytes else (low, middle)
            )
        return form.format(density=f"{low:.4g}")

    return setting


def fit_rank(form: str, modes: int) -> Setting:
    """Choose the largest rank with the saving; 2 `modes` are the matrix, 4 split rows and columns into two factors."""

    def setting(spec: TensorSpec, saving: float) -> str:
        max_bytes = spec.numel * spec.dtype.itemsize / saving
        shape = spec.shape[1:]
        dims = shape if modes == 2 else tuple(factor for size in shape for factor in factorize(size))
        texts = [form.format(rank=rank, dims=f"({', '.join(map(str, dims))})") for rank in range(1, max(shape) + 1)]
        low, high = 0, len(texts)  # sizes grow with the rank
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if num_bytes(texts[middle], spec) <= max_bytes else (low, middle)
        return texts[low]

    return setting


def factorize(size: int) -> tuple[int, int]:
    """Return two whole numbers with this product, as close as possible."""
    first = next(d for d in range(math.isqrt(size), 0, -1) if size % d == 0)
    return first, size // first


def sketch_of_topk(spec: TensorSpec, saving: float) -> str:
    """Return Top-k summed as sketches: 1.3 cells of 32 bits per value and a bitmap, above 20 times a Bloom filter."""
    if saving <= 20:
        return f"sketch(topk(density={max(1e-4, (64 / saving - 2) / 83.2):.4g}))"
    return f'sketch(topk(density={64 / saving / 112:.4g}), index="bloom")'


def sketch_of_all(spec: TensorSpec, saving: float) -> str:
    """Return a sketch of the whole tensor in fewer cells than values; values that cannot be peeled are estimated."""
    return f'sketch(identity(), cells={1 / saving:.4g}, on_failure="median")'


METHODS = (
    fixed_method("bf16", "quantisation", 'cast(dtype="bf16")'),
    fixed_method("uniform 8 bits, blocks of 128", "quantisation", "uniform(bits=8, block=128)"),
    fixed_method("uniform 8 bits", "quantisation", "uniform(bits=8)"),
    fixed_method("uniform 4 bits", "quantisation", "uniform(bits=4)"),
    fixed_method("uniform 2 bits", "quantisation", "uniform(bits=2)"),
    fixed_method("uniform 4 bits, stochastic", "quantisation", 'uniform(bits=4, rounding="stochastic")'),
    fixed_method("uniform 4 bits, blocks of 128", "quantisation", "uniform(bits=4, block=128)"),
    fixed_method("uniform 4 bits, blocks of 2048", "quantisation", "uniform(bits=4, block=2048)"),
    fixed_method("uniform 4 bits, log v", "quantisation", 'moments(uniform(bits=4), transmit="log")'),
    MomentMethod("Top-k", "sparsification", choose_density("topk(density={density})")),
    MomentMethod("Top-k in 8 bits", "sparsification", choose_density("topk(density={density}, values=uniform(bits=8))"),
        (8, 16, 32, 100)),
    MomentMethod("sketch", "homomorphic", sketch_of_all, (2, 8, 32)),
    MomentMethod("sketch of Top-k", "homomorphic", sketch_of_topk),
    MomentMethod("tensor train, 2 modes", "factorisation", fit_rank("tensor_train(rank={rank})", 2), general=False),
    MomentMethod("tensor train, 4 modes", "factorisation",
        fit_rank("tensor_train(rank={rank}, dims={dims})", 4), general=False),
    fixed_method("tensor train, error 0.5", "factorisation", "tensor_train(max_error=0.5)"),
    fixed_method("tensor train, error 0.3", "factorisation", "tensor_train(max_error=0.3)"),
    fixed_method("tensor train, error 0.1", "factorisation", "tensor_train(max_error=0.1)"),
    MomentMethod("ST-HOSVD, 4 modes", "factorisation", fit_rank("st_hosvd(rank={rank}, dims={dims})", 4),
        (8, 32, 100),
        general=False),
)  # fmt: skip
FAMILIES = tuple(dict.fromkeys(method.family for method in METHODS))

RULES = {  # the effect of each rule, for two compressors
    "all rules": "{}",
    "v instead of √v": 'moments({}, transmit="v")',
    "log v": 'moments({}, transmit="log")',
    "own mask, zeros stay": "moments({}, mask=false)",
    "no floor": "moments({}, floor=false)",
    "own mask, no floor": "moments({}, mask=false, floor=false)",
    "none": 'moments({}, transmit="v", mask=false, floor=false)',
}
COMPRESSORS_FOR_RULES = ("uniform(bits=4)", "topk(density=0.1)")
