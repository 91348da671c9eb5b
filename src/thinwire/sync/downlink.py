"""The model on its way to the workers: as it is, or only how it changed, compressed (EF21 on the server's side)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..catalog import parse_compressor, to_text
from ..core import Compressor, DecodeError, Key, Payload, TensorSpec, all_finite, cast_saturating, derive_key, saturate
from ..wire import expect_parts, expect_vector
from .messages import Refused

_DOWNLINK_KEY = "down"  # frozen: makes the random bits

MOST_PARTS = 20_000  # of a message: a frame's head has room for 65,000 with their types, and lengths take bytes, too
Weights = Mapping[str, Tensor]


def dense_payload(weights: Weights) -> Payload:
    return Payload(tuple(tensor.detach().flatten().clone() for tensor in weights.values()))


def read_dense(payload: Payload, layers: Sequence[TensorSpec]) -> dict[str, Tensor]:
    parts = expect_parts(payload, len(layers), "the model")
    return {
        spec.name: expect_vector(part, spec.dtype, spec.numel, spec.name).to(spec.device).view(spec.shape).clone()
        for spec, part in zip(layers, parts, strict=True)
    }


class Changes:
    """w - ŵ as one payload, ŵ <- ŵ + C(w - ŵ): the same on both sides, to the bit."""

    def __init__(self, layers: Sequence[TensorSpec], down: str, seed: int) -> None:
        self.layers, self.seed = list(layers), seed
        self.compressor: Compressor = parse_compressor(down)
        self.text = to_text(self.compressor)
        zeros = [torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device) for spec in self.layers]
        self.counts = [len(self.compressor.encode(zero, Key(0)).parts) for zero in zeros]

    def encode(self, weights: Weights, known: Weights, *words: int | str) -> Payload:
        parts: list[Tensor] = []
        for spec in self.layers:
            news = cast_saturating(saturate(weights[spec.name] - known[spec.name]), spec.dtype)
            parts += self.compressor.encode(news, self._key(spec, words)).parts
        return Payload(tuple(parts))

    def added(self, known: Weights, payload: Payload, *words: int | str) -> dict[str, Tensor]:
        """ŵ after this change; a payload no server could have sent is a DecodeError."""
        parts = iter(expect_parts(payload, sum(self.counts), "the model's change"))
        after = {}
        for spec, count in zip(self.layers, self.counts, strict=True):
            mine = Payload(tuple(next(parts) for _ in range(count))).to(spec.device)
            after[spec.name] = saturate(known[spec.name] + self.compressor.decode(mine, spec, self._key(spec, words)))
            if not all_finite(after[spec.name]):
                raise DecodeError(f"{spec.name}: the model's change is not finite")
        return after

    def _key(self, spec: TensorSpec, words: tuple[int | str, ...]) -> Key:
        return derive_key(self.seed, _DOWNLINK_KEY, *words, spec.name)


class PersonalCopies:
    """What each worker holds, one model a worker: they ask at different times, so they hold different models.

    A reply may be lost. So a change is pending until the worker's next message says how many it has; if it lacks the
    last one, that is forgotten and worked out anew.
    """

    def __init__(self, changes: Changes) -> None:
        self.changes = changes
        self.known: dict[str, dict[str, Tensor]] = {}
        self.pending: dict[str, dict[str, Tensor]] = {}
        self.sent: dict[str, int] = {}

    def start(self, worker: str, weights: Weights) -> None:
        """The worker is given the whole model, and has had no change yet."""
        self.known[worker] = {name: tensor.clone() for name, tensor in weights.items()}
        self.pending.pop(worker, None)
        self.sent[worker] = 0

    def reply(self, worker: str, have: int, weights: Weights) -> Payload:
        sent = self.sent[worker]
        if have == sent:
            self.known[worker] = self.pending.pop(worker, self.known[worker])
        elif have == sent - 1 and worker in self.pending:
            sent -= 1
        else:
            raise Refused("have", f"{worker} was sent {sent} changes and says it has {have}; join again")
        payload = self.changes.encode(weights, self.known[worker], worker, sent)
        self.pending[worker] = self.changes.added(self.known[worker], payload, worker, sent)
        self.sent[worker] = sent + 1
        return payload

    def forget(self, worker: str) -> None:
        for table in (self.known, self.pending, self.sent):
            table.pop(worker, None)

    def state_dict(self) -> dict[str, Any]:
        return {"known": dict(self.known), "pending": dict(self.pending), "sent": dict(self.sent)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.known, self.pending = dict(state["known"]), dict(state["pending"])
        self.sent = {worker: int(count) for worker, count in state["sent"].items()}


class SharedCopy:
    """One ŵ for all clients, one change a round: ŵ_r+1 = ŵ_r + C(w_r+1 - ŵ_r), ŵ_0 = w_0.

    A client that missed rounds is sent all changes since its own, or ŵ whole where that is shorter or the changes have
    too many parts for a frame; so changes are kept only while together they are shorter than the model.
    """

    def __init__(self, changes: Changes | None, weights: Weights) -> None:
        self.changes = changes
        self.model = {name: tensor.clone() for name, tensor in weights.items()}
        self.round = 0
        self.log: dict[int, Payload] = {}  # round -> the change that led to it

    def advance(self, weights: Weights, round: int) -> None:
        if self.changes is None:
            self.model = {name: tensor.clone() for name, tensor in weights.items()}
        else:
            self.log[round] = self.changes.encode(weights, self.model, round)
            self.model = self.changes.added(self.model, self.log[round], round)
            dense = sum(tensor.nbytes for tensor in self.model.values())
            while self.log and sum(change.num_bytes for change in self.log.values()) >= dense:
                del self.log[min(self.log)]
        self.round = round

    def since(self, have: int) -> tuple[bool, Payload]:
        """(whole?, payload) for a client that holds round `have`, -1 for none."""
        missing = range(have + 1, self.round + 1)
        known = 0 <= have <= self.round and all(r in self.log for r in missing)
        if not known or sum(len(self.log[r].parts) for r in missing) > MOST_PARTS:
            return True, dense_payload(self.model)
        return False, Payload(tuple(part for r in missing for part in self.log[r].parts))

    def state_dict(self) -> dict[str, Any]:
        log = {round: list(change.parts) for round, change in self.log.items()}
        return {"model": dict(self.model), "round": self.round, "log": log}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model, self.round = dict(state["model"]), int(state["round"])
        self.log = {int(round): Payload(tuple(parts)) for round, parts in state["log"].items()}


def cut_changes(payload: Payload, changes: Changes, first: int, last: int) -> Iterator[tuple[int, Payload]]:
    """The changes of rounds first ... last that travelled as one payload."""
    each = sum(changes.counts)
    parts = expect_parts(payload, each * (last - first + 1), "the model's changes")
    for place, round in enumerate(range(first, last + 1)):
        yield round, Payload(parts[place * each : (place + 1) * each])
