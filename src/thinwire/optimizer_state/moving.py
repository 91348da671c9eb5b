"""One host's moments for another: encode, send, decode. Programs for a world of just these two."""

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
from .composing import carried, for_one_host
from .settings import Moments, moments_text

_MOVING_KEY = "moving"  # frozen: makes the random bits


class Moving:
    """What sender and receiver must agree on: the settings and the forms of the pairs, by place."""

    def __init__(self, adam: AdamMoments, moments: Moments, *, dense_below: int = DENSE_BELOW, seed: int = 0) -> None:
        self.adam, self.moments, self.seed = adam, moments, seed
        whole = for_one_host(moments)
        self.rules: dict[str, Compressor] = {
            spec.name: carried(spec, whole, Identity(), dense_below) for spec in adam.layers
        }
        self.facts = {
            "moments": moments_text(moments), "dense_below": dense_below, "seed": seed,
            "tensors": [f"{list(spec.shape[1:])} {spec.dtype}" for spec in adam.layers],
        }  # fmt: skip

    def send(self, to: int) -> Program[None]:
        """Encode all pairs and send them, with their counters."""
        yield from self._agree(to)
        counters = torch.tensor([self.adam.counter(name) for name in self.rules], dtype=torch.float64)
        payloads = [self.rules[spec.name].encode(self.adam.pair(spec.name), self._key(spec)) for spec in self._specs]
        labels = [label for s, p in zip(self._specs, payloads, strict=True) for label in payload_labels(s.name, p)]
        whole = Payload((counters, *(part for payload in payloads for part in payload.parts)))
        yield NeighborExchange(
            ((to, whole),), (), labels=(Label("", "counters", counters.nbytes, 8.0 * counters.nbytes), *labels)
        )

    def receive(self, source: int) -> Program[None]:
        """Wait for them, decode them all, and only then take them over."""
        yield from self._agree(source)
        forms = [self._form(spec) for spec in self._specs]
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

    def _form(self, spec: TensorSpec) -> tuple[torch.dtype, ...]:
        """The types of the parts, which follow from the composition, not from the numbers."""
        return types_of(self.rules[spec.name].encode(torch.zeros(spec.shape, dtype=spec.dtype), self._key(spec)))

    def _agree(self, other: int) -> Program[None]:
        text = json.dumps(self.facts).encode()
        mine = Payload((torch.frombuffer(bytearray(text), dtype=torch.uint8),))
        label = Label("", "settings", len(text), 8.0 * len(text))
        answer: GatheredPayloads = yield NeighborExchange(((other, mine),), (other,), labels=(label,))
        theirs: Tensor = answer[0].parts[0]
        compare(self.facts, json.loads(bytes(theirs.tolist())))


def compare(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """ConfigMismatch, on both hosts, with the first field that differs."""
    for field, value in ours.items():
        if theirs.get(field) != value:
            raise ConfigMismatch(
                f"moments: {field} is {value} here and {theirs.get(field)} on the other host; send and receive need "
                "the same settings and tensors of the same shapes, in the same order"
            )
