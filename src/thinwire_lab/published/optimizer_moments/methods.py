"""The ways E6 compares, each with settings for the savings it is asked for, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from thinwire.catalog import DENSE_BELOW
from thinwire.core import TensorSpec
from thinwire.optimizer_state import build_pair_compressor, parse_moments

SAVINGS = (2, 4, 8, 16, 32, 100)

Setting = Callable[[TensorSpec, float], str]  # a text for one layer's pair and a wished saving


@dataclass(frozen=True)
class Way:
    """A method under the name that tables show; `savings` it can be asked for, or 0: it has the one it has."""

    label: str
    family: str
    setting: Setting
    savings: tuple[float, ...] = SAVINGS
    general: bool = True  # whether one text serves all layers

    def texts(self, layers: Mapping[str, TensorSpec], saving: float) -> dict[str, str]:
        """By layer. Vectors and small layers travel dense."""
        return {
            name: "dense()" if len(spec.shape) < 3 or spec.numel < 2 * DENSE_BELOW else self.setting(spec, saving)
            for name, spec in layers.items()
        }


def fixed(label: str, family: str, text: str) -> Way:
    return Way(label, family, lambda spec, saving: text, (0,))


def num_bytes(text: str, spec: TensorSpec) -> float:
    return build_pair_compressor(parse_moments(text)).num_bytes(spec)


def sparse(form: str) -> Setting:
    """The density with which a payload is dense's size divided by the saving."""

    def setting(spec: TensorSpec, saving: float) -> str:
        low, high = 1e-5, 1.0
        wanted = spec.numel * spec.dtype.itemsize / saving
        for _ in range(40):
            middle = math.sqrt(low * high)
            low, high = (
                (middle, high) if num_bytes(form.format(density=f"{middle:.6f}"), spec) <= wanted else (low, middle)
            )
        return form.format(density=f"{low:.4g}")

    return setting


def ranked(form: str, modes: int) -> Setting:
    """The largest rank that saves as much; 2 `modes` are the matrix itself, 4 have rows and columns in two factors."""

    def setting(spec: TensorSpec, saving: float) -> str:
        wanted = spec.numel * spec.dtype.itemsize / saving
        shape = spec.shape[1:]
        dims = shape if modes == 2 else tuple(factor for size in shape for factor in factors(size))
        texts = [form.format(rank=rank, dims=f"({', '.join(map(str, dims))})") for rank in range(1, max(shape) + 1)]
        low, high = 0, len(texts)  # sizes grow with the rank
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if num_bytes(texts[middle], spec) <= wanted else (low, middle)
        return texts[low]

    return setting


def factors(size: int) -> tuple[int, int]:
    """Two whole numbers with this product, as near to one another as can be."""
    first = next(d for d in range(math.isqrt(size), 0, -1) if size % d == 0)
    return first, size // first


def summed(spec: TensorSpec, saving: float) -> str:
    """Top-k, added as sketches: 1.3 cells of 32 bits a value and a bitmap, or beyond 20 times a Bloom filter."""
    if saving <= 20:
        return f"sketch(topk(density={max(1e-4, (64 / saving - 2) / 83.2):.4g}))"
    return f'sketch(topk(density={64 / saving / 112:.4g}), index="bloom")'


def guessed(spec: TensorSpec, saving: float) -> str:
    """All of it in fewer cells than numbers: what cannot be peeled is guessed."""
    return f'sketch(identity(), cells={1 / saving:.4g}, on_failure="median")'


WAYS = (
    fixed("bf16", "quantisation", 'cast(dtype="bf16")'),
    fixed("uniform 8 bits, blocks of 128", "quantisation", "uniform(bits=8, block=128)"),
    fixed("uniform 8 bits", "quantisation", "uniform(bits=8)"),
    fixed("uniform 4 bits", "quantisation", "uniform(bits=4)"),
    fixed("uniform 2 bits", "quantisation", "uniform(bits=2)"),
    fixed("uniform 4 bits, by chance", "quantisation", 'uniform(bits=4, rounding="stochastic")'),
    fixed("uniform 4 bits, blocks of 128", "quantisation", "uniform(bits=4, block=128)"),
    fixed("uniform 4 bits, blocks of 2048", "quantisation", "uniform(bits=4, block=2048)"),
    fixed("uniform 4 bits, log v", "quantisation", 'moments(uniform(bits=4), transmit="log")'),
    Way("Top-k", "sparsification", sparse("topk(density={density})")),
    Way("Top-k in 8 bits", "sparsification", sparse("topk(density={density}, values=uniform(bits=8))"),
        (8, 16, 32, 100)),
    Way("sketch", "homomorphic", guessed, (2, 8, 32)),
    Way("sketch of Top-k", "homomorphic", summed),
    Way("tensor train, 2 modes", "factorisation", ranked("tensor_train(rank={rank})", 2), general=False),
    Way("tensor train, 4 modes", "factorisation", ranked("tensor_train(rank={rank}, dims={dims})", 4), general=False),
    fixed("tensor train, error 0.5", "factorisation", "tensor_train(max_error=0.5)"),
    fixed("tensor train, error 0.3", "factorisation", "tensor_train(max_error=0.3)"),
    fixed("tensor train, error 0.1", "factorisation", "tensor_train(max_error=0.1)"),
    Way("ST-HOSVD, 4 modes", "factorisation", ranked("st_hosvd(rank={rank}, dims={dims})", 4), (8, 32, 100),
        general=False),
)  # fmt: skip
FAMILIES = tuple(dict.fromkeys(way.family for way in WAYS))

RULES = {  # what each rule prevents, for two ways
    "all rules": "{}",
    "v instead of √v": 'moments({}, transmit="v")',
    "log v": 'moments({}, transmit="log")',
    "own mask, zeros stay": "moments({}, mask=false)",
    "no floor": "moments({}, floor=false)",
    "own mask, no floor": "moments({}, mask=false, floor=false)",
    "none": 'moments({}, transmit="v", mask=false, floor=false)',
}
RULED = ("uniform(bits=4)", "topk(density=0.1)")
