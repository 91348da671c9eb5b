"""Transfer of moments from one rank to another: programs for a world of these two."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..catalog import DENSE_BELOW
from ..compressors import Identity
from ..core import (
    Compressor,
    ConfigMismatch,
    GatheredPayloads,
    Key,
    Label,
    NeighborExchange,
    Payload,
    Program,
    TensorSpec,
    derive_key,
    payload_labels,
    types_of,
)
from .adam import AdamMoments
from .config import MomentsConfig, moments_to_text
from .pair_composition import build_pair_compressor, select_by_size

_MOVING_KEY = "moving"  # frozen: makes the random bits


class MomentsTransfer:
    """Sends or receives the moments of an Adam; both ranks compare settings and shapes first."""

    def __init__(
        self, adam: AdamMoments, moments: MomentsConfig, *, dense_below: int = DENSE_BELOW, seed: int = 0
    ) -> None:
        self.adam, self.moments, self.seed = adam, moments, seed
        compressing = build_pair_compressor(moments)
        self.rules: dict[str, Compressor] = {
            spec.name: select_by_size(spec, compressing, Identity(), dense_below) for spec in adam.layers
        }
        self.settings = {
            "moments": moments_to_text(moments), "dense_below": dense_below, "seed": seed,
            "tensors": [f"{list(spec.shape[1:])} {spec.dtype}" for spec in adam.layers],
        }  # fmt: skip

    def send(self, to: int) -> Program[None]:
        """Encode all pairs and send them with their step counters."""
        yield from self._compare_settings(to)
        counters = torch.tensor([self.adam.counter(name) for name in self.rules], dtype=torch.float64)
        payloads = [self.rules[spec.name].encode(self.adam.pair(spec.name), self._key(spec)) for spec in self._specs]
        labels = [label for s, p in zip(self._specs, payloads, strict=True) for label in payload_labels(s.name, p)]
        whole = Payload((counters, *(part for payload in payloads for part in payload.parts)))
        yield NeighborExchange(
            ((to, whole),), (), labels=(Label("", "counters", counters.nbytes, 8.0 * counters.nbytes), *labels)
        )

    def receive(self, source: int) -> Program[None]:
        """Receive and decode all pairs, then store them in the optimizer."""
        yield from self._compare_settings(source)
        forms = [self._part_dtypes(spec) for spec in self._specs]
        dense = sum(spec.numel * spec.dtype.itemsize for spec in self._specs)
        form = (torch.float64, *(dtype for types in forms for dtype in types))
        labels = [Label("", "counters", 0, 0.0)]
        labels += [Label(s.name, "values", 0, 0.0) for s, types in zip(self._specs, forms, strict=True) for _ in types]
        answer: GatheredPayloads = yield NeighborExchange(
            (), (source,), form, expected_bytes=dense, labels=tuple(labels)
        )
        parts = iter(answer[0].parts)
        counters = next(parts).tolist()
        pairs = [
            self.rules[spec.name].decode(
                Payload(tuple(next(parts).to(spec.device) for _ in types)), spec, self._key(spec)
            )
            for spec, types in zip(self._specs, forms, strict=True)
        ]
        for spec, pair, counter in zip(self._specs, pairs, counters, strict=True):
            self.adam.write(spec.name, pair, counter if self.moments.counters else None, self.moments.floor)

    @property
    def _specs(self) -> list[TensorSpec]:
        return self.adam.layers

    def _key(self, spec: TensorSpec) -> Key:
        return derive_key(self.seed, _MOVING_KEY, spec.name)

    def _part_dtypes(self, spec: TensorSpec) -> tuple[torch.dtype, ...]:
        """The dtypes of the parts, which depend on the composition, not on the values."""
        return types_of(self.rules[spec.name].encode(torch.zeros(spec.shape, dtype=spec.dtype), self._key(spec)))

    def _compare_settings(self, other: int) -> Program[None]:
        text = json.dumps(self.settings).encode()
        own = Payload((torch.frombuffer(bytearray(text), dtype=torch.uint8),))
        label = Label("", "settings", len(text), 8.0 * len(text))
        answer: GatheredPayloads = yield NeighborExchange(((other, own),), (other,), labels=(label,))
        theirs: Tensor = answer[0].parts[0]
        require_equal(self.settings, json.loads(bytes(theirs.tolist())))


def require_equal(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raise ConfigMismatch, on both ranks, with the first field that differs."""
    for field, value in own.items():
        if theirs.get(field) != value:
            raise ConfigMismatch(
                f"moments: {field} is {value} here and {theirs.get(field)} on the other rank; send and receive need "
                "the same settings, and tensors of the same shapes in the same order"
            )
