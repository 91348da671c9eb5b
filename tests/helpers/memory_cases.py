"""Compositions with memories, in the catalog and not, and workers that were trained with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from helpers.cases import draw
from helpers.own_memory import Late
from thinwire import Exchanger, TensorSpec, World, lockstep, parse
from thinwire.aggregators import GatherMean, Switch
from thinwire.compressors import TopK
from thinwire.core import Aggregator, memory_items
from thinwire.feedback import EF21

LAYERS = [TensorSpec("w", (20, 30)), TensorSpec("v", (7,)), TensorSpec("h", (16, 4), torch.bfloat16)]
OBJECTS: dict[str, Aggregator[Any]] = {  # compositions with a memory that no catalog lists
    "late(topk)": Late(GatherMean(TopK(density=0.05))),
    "late(ef21(topk))": Late(EF21(GatherMean(TopK(density=0.05)))),
    "switch(dense, late(topk))": Switch((parse("dense()"), Late(GatherMean(TopK(density=0.05))))),
}
MEMORIES = [
    "ef(topk(density=0.05))",
    'ef(qsgd(bits=4), residual_dtype="bf16")',
    'ef(topk(density=0.1), residual_dtype="int8")',
    "ef(powersgd(rank=1))",
    "scam(topk(density=0.05))",
    'scam(topk(density=0.05), residual_dtype="int8")',
    "dgc(topk(density=0.05))",
    "dgc(topk(density=0.1), momentum=0.5)",
    "ef21(topk(density=0.05))",
    "ef21(qsgd())",
    "switch(ef(topk(density=0.05)), ef(qsgd(bits=2)), controller=accordion(every=2))",
    'switch(dense(), ef(topk(density=0.05), residual_dtype="int8"), controller=fixed(default=1))',
    "switch(ef21(topk(density=0.05)), dgc(topk(density=0.05)))",
    "adapt(ef(topk(density=0.1)), controller=lgreco(every=2, start=1, window=1, error_levels=100))",
    "ef(adapt(topk(density=0.1), controller=accordion(every=2)))",
    "scheduled(dgc(topk(density=0.05)))",
    'ef(ef21(topk(density=0.1)), residual_dtype="int8")',
    "ef(scam(topk(density=0.05)))",
    "ef(flatten(topk(density=0.05)))",
    *OBJECTS,
    "topk(density=0.05)",
    "dense()",
]
TAKE_RESIDUALS = ("ef(", "scam(", "dgc(", "late(")  # memories that adopt the residual of another


def composed(text: str) -> Aggregator[Any]:
    return OBJECTS[text] if text in OBJECTS else parse(text)


def trained(text: str, steps: int = 4, size: int = 2) -> list[Exchanger]:
    """Workers after a few steps."""
    workers = [Exchanger(LAYERS, composed(text), seed=3) for _ in range(size)]
    train(workers, range(steps))
    return workers


def train(workers: list[Exchanger], steps: Iterable[int]) -> None:
    size = len(workers)
    for step in steps:
        given = [{s.name: draw("gaussian", s.shape, s.dtype, seed=9 * step + r) for s in LAYERS} for r in range(size)]
        lockstep([w.run_step(given[r], step, World(r, size)) for r, w in enumerate(workers)])


def mass(exchanger: Exchanger, kind: str) -> dict[str, Tensor]:
    """By layer: the sum of what it holds of this kind."""
    found = {}
    for name, spec in exchanger.layers.items():
        held = [
            h.value for h in memory_items(exchanger.aggregators[name], exchanger.states[name], spec) if h.kind == kind
        ]
        tensors = [torch.stack(v) if isinstance(v, tuple) else v for v in held]
        found[name] = sum(tensors[1:], start=tensors[0]) if tensors else torch.zeros(spec.shape)
    return found


def slack(text: str, owed: Tensor) -> float:
    """How much rounding a residual to fewer bytes may change a coordinate."""
    share = 2.0**-6 if "int8" in text else 2.0**-7 if "bf16" in text else 1e-6
    return share * float(owed.abs().max()) + 1e-30
