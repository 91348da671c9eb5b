"""What the suites run over: every part of the catalog, and tensors of every awkward kind."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.catalog import AGGREGATORS, COMPRESSORS, MEMORIES, TOPOLOGIES, parse, parse_compressor
from thinwire.core import Aggregator, Compressor

COMPRESSOR_TEXTS = [
    "identity()",
    'cast(dtype="bf16")',
    'cast(dtype="fp16")',
    'cast(dtype="fp32")',
    "topk(density=0.1)",
    "topk(k=3)",
    'topk(density=0.2, values="bf16")',
    "topk(density=0.2, values=natural())",
    'topk(density=0.2, values=power2(rule="log"))',
    "topk(density=0.3, values=qsgd(bits=8, block=16))",
    "randomk(density=0.25)",
    "randomk(density=0.25, scaled=false)",
    "randomk(k=2)",
    "randomk(density=0.5, values=natural())",
    "qsgd()",
    "qsgd(bits=2, block=8)",
    "qsgd(bits=9, block=64)",
    "natural()",
    "power2()",
    'power2(rule="log")',
    'power2(rule="log", ceiling=0)',
    "sign()",
    "threshold(tau=0.5)",
    'threshold(count=4, values="bf16")',
    "adaptive(density=0.1)",
    "adaptive(density=0.1, sample=0.3)",
    "level_search()",
    "level_search(zeros=0.5, values=qsgd(bits=2, block=16))",
    "square(density=0.1)",
    "impk(density=0.1)",
    'impk(k=3, weights="plain", values=power2(rule="log"))',
    "greedy(density=0.1)",
    'greedy(density=0.2, weights="normalised", among=2.0, values="bf16")',
    "stochastic(density=0.1)",
    "stochastic(density=0.2, poisson=true)",
    "stochastic(density=0.25, poisson=true, floor=0.5, values=natural())",
    "qsgd(norm='l2')",
    "qsgd(bits=3, block=20, norm='l2')",
    "maxmin()",
    "maxmin(bits=1, block=7)",
    'maxmin(bits=8, block=64, rounding="nearest")',
    "uniform()",
    "uniform(bits=2, block=10)",
    'uniform(bits=4, block=50, rounding="stochastic")',
    "ternary()",
    "ternary(block=9)",
    "natural(bits=8)",
    "topk(density=0.1, values=uniform(bits=2))",
    "svd(rank=1)",
    "svd(rank=2, dims=(6, 4))",
    "rsvd(rank=2)",
    "projection(rank=1)",
    "projection(rank=2, scaled=false)",
    "st_hosvd(rank=1)",
    "st_hosvd(ranks=(1, 2, 1), dims=(6, 2, 2))",
    "hosvd(rank=2)",
    "tt(rank=1)",
    "tt(error=0.3, dims=(2, 3, 4))",
    "cp(rank=1, sweeps=3)",
]

MIXING_TEXTS = [  # ranks end with differing values
    "gossip(identity(), ring())",
    "gossip(identity(), complete())",
    "gossip(threshold(tau=0.5), rotating())",
    "gossip(qsgd(), rotating(pair=true))",
    'gossip(topk(density=0.1), star(), own="exact")',
    "ef(gossip(topk(density=0.1), ring()))",
    'ef(gossip(topk(density=0.1, values="bf16"), exponential(), own="exact"))',
    "ef(gossip(sign(), exponential(one_peer=true)))",
    "ef(gossip(randomk(density=0.25), torus()))",
    "scam(gossip(topk(density=0.1), rotating()))",
    "dgc(gossip(topk(density=0.1), ring()))",
    'ef(switch(gossip(topk(density=0.1), ring()), gossip(qsgd(), rotating())), residual="int8")',
    "choco(topk(density=0.1), ring())",
    "choco(qsgd(), exponential(), gamma=0.5)",
]

COMPOSITION_TEXTS = [
    "dense()",
    "identity()",
    "gather(identity())",
    "gather(randomk(density=0.25))",
    "switch(topk(density=0.1), dense())",
    *COMPRESSOR_TEXTS[1:],
    *(f"ef({text})" for text in ("dense()", *COMPRESSOR_TEXTS)),
    *(f"ef21({text})" for text in ("dense()", "topk(density=0.1)", 'topk(k=3, values="bf16")', "sign()", "power2()")),
    "ef(switch(topk(density=0.1), qsgd(), dense()))",
    "ef(adapt(topk(density=0.1), by=lgreco(every=2, start=2, window=1)))",
    'adapt(powersgd(rank=2, min_saving=1.0), qsgd(), by=lgreco(every=2, start=1, statistics="one"))',
    "ef(adapt(sketch(topk(density=0.1)), dense(), by=fixed(default=1)))",
    "ef(ef21(topk(density=0.1)))",
    "scam(topk(density=0.1))",
    "scam(topk(density=0.1), discharge=true)",
    "scam(topk(k=3), decay=0.9)",
    "scam(threshold(tau=0.5))",
    "scam(two_hop(topk(density=0.1)))",
    "scam(impk(density=0.1))",
    "scam(two_hop(stochastic(k=4)))",
    "ef21(impk(density=0.2))",
    "ef(two_hop(impk(density=0.1)))",
    "ef(scheduled(greedy(density=0.5), start=0.5, end=0.1, steps=3))",
    'ef(switch(impk(density=0.1, weights="normalised"), dense()))',
    "dgc(topk(density=0.1))",
    "dgc(topk(density=0.1), momentum=0.5, masking=false, clip=1.0)",
    'ef(topk(density=0.1), residual="bf16")',
    'ef(qsgd(), residual="int8")',
    "two_hop(qsgd())",
    "two_hop(topk(density=0.1))",
    'ef(two_hop(topk(k=6, values="bf16")))',
    "ef(two_hop(uniform(bits=4)))",
    "ef21(two_hop(topk(density=0.2)))",
    "ef(two_hop(threshold(tau=0.5)))",
    "vote()",
    "ef(vote())",
    'ef(scheduled(topk(density=0.5), start=0.5, end=0.1, steps=3, shape="cosine"))',
    'scheduled(two_hop(topk(k=3)), shape="dgc", steps=10)',
    "sketch(identity())",
    "sketch(topk(density=0.1), cells=0.7)",
    "sketch(topk(k=2), lanes=2)",
    "sketch(randomk(density=0.2), cells=0.4, exact=true)",
    'sketch(topk(density=0.1), index="bloom", false_positives=0.1, exact=true)',
    "ef(sketch(topk(density=0.1)))",
    'ef(sketch(topk(density=0.1), cells=0.3, index="bloom"))',
    'ef(sketch(topk(density=0.3), cells=0.3, on_failure="median"))',
    "ef(sketch(sign(), cells=0.6, exact=true))",
    "scam(sketch(topk(density=0.1)))",
    "union(qsgd())",
    "ef(union(topk(density=0.1)))",
    'ef(union(threshold(tau=1.5), index="bloom"))',
    "ef21(svd(rank=1))",
    "ef21(st_hosvd(rank=1))",
    "two_hop(svd(rank=1))",
    "powersgd(rank=1)",
    'powersgd(rank=2, against="mean", min_saving=1.0)',
    "powersgd(rank=1, halves=true)",
    "ef(powersgd(rank=1))",
    "ef(powersgd(rank=1, dims=(6, 4), halves=true))",
    'ef(powersgd(rank=1, dims=(6, 4), against="mean"))',
    "ef21(powersgd(rank=1))",
    "ring_sum()",
    "ef(ring_sum())",
    "server(identity())",
    "server(topk(density=0.1), down=qsgd(), shards=2)",
    "ef(server(topk(density=0.1), down=topk(density=0.2), shards=3))",
    "ef(server(qsgd(), down=sign(), shards=64))",
    "ef21(server(topk(density=0.1), shards=2))",
    "scam(server(topk(density=0.1), shards=2))",
    *MIXING_TEXTS,
]


def compressors() -> list[Compressor]:
    assert {text.split("(")[0] for text in COMPRESSOR_TEXTS} == set(COMPRESSORS), "a new part belongs into these lists"
    return [parse_compressor(text) for text in COMPRESSOR_TEXTS]


def compositions() -> list[Aggregator]:
    listed = {word for text in COMPOSITION_TEXTS for word in text.replace("(", " ").replace(",", " ").split()}
    everything = set(AGGREGATORS) - {"sum"} | set(MEMORIES) | set(TOPOLOGIES) - {"matrix", "hypercube"}  # of some sizes
    assert listed >= everything, "a new part belongs into these lists"
    return [parse(text) for text in COMPOSITION_TEXTS]


KINDS = ("gaussian", "heavy tails", "sparse", "constant", "zeros", "one-hot", "one huge", "tiny", "ties")


def draw(kind: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """A finite tensor of that kind; the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    flat = x.view(-1)
    if kind == "heavy tails":
        x = x.sign() * x.abs().pow(5)
    elif kind == "sparse":
        x = x * (torch.rand(shape, generator=generator) < 0.1)
    elif kind == "constant":
        x = torch.full(shape, -0.75, dtype=torch.float64)
    elif kind == "zeros":
        x = torch.zeros(shape, dtype=torch.float64)
    elif kind == "one-hot":
        x = torch.zeros(shape, dtype=torch.float64)
        x.view(-1)[flat.numel() // 2 : flat.numel() // 2 + 1] = -2.5
    elif kind == "one huge":
        flat[:1] = 3e38 if dtype not in (torch.float16,) else 6e4
    elif kind == "tiny":
        x = x * (1e-30 if dtype not in (torch.float16,) else 1e-6)
    elif kind == "ties":
        x = x.sign()
    return x.to(dtype)


SHAPES = ((), (0,), (1,), (7,), (33, 5), (4, 3, 5), (1000,))
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
