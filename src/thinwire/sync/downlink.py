"""The model on its way to workers: whole, or as compressed changes with EF21 (Richtárik et al., 2021) at the server.

The server sends C(w - ŵ), and both sides keep ŵ <- ŵ + C(w - ŵ), equal to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..catalog import parse_compressor, to_text
from ..core import Compressor, DecodeError, Key, Payload, TensorSpec, all_finite, cast_saturating, derive_key, saturate
from ..wire import expect_parts, expect_vector
from .messages import OUT_OF_SYNC, Rejected

MAX_PARTS = 20_000  # of a message: the head of a frame has space for 65,000 with their types, and lengths take bytes
_DOWNLINK_KEY = "down"  # frozen: makes the random bits
Weights = Mapping[str, Tensor]


def dense_payload(weights: Weights) -> Payload:
    """The whole model as a payload."""
    return Payload(tuple(tensor.detach().flatten().clone() for tensor in weights.values()))


def read_dense(payload: Payload, layers: Sequence[TensorSpec]) -> dict[str, Tensor]:
    """The whole model from a payload; DecodeError if it does not fit the layers."""
    parts = expect_parts(payload, len(layers), "the model")
    return {
        spec.name: expect_vector(part, spec.dtype, spec.numel, spec.name).to(spec.device).view(spec.shape).clone()
        for spec, part in zip(layers, parts, strict=True)
    }


class DownlinkCodec:
    """Encodes C(w - ŵ) as one payload and applies it: ŵ <- ŵ + C(w - ŵ), with the same bits on both sides."""

    def __init__(self, layers: Sequence[TensorSpec], compression: str, seed: int) -> None:
        self.layers, self.seed = list(layers), seed
        self.compressor: Compressor = parse_compressor(compression)
        self.text = to_text(self.compressor)
        zeros = [torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device) for spec in self.layers]
        self.num_parts = [len(self.compressor.encode(zero, Key(0)).parts) for zero in zeros]

    def encode(self, weights: Weights, copy: Weights, *words: int | str) -> Payload:
        """The compressed change from the receiver's copy to the weights."""
        parts: list[Tensor] = []
        for spec in self.layers:
            change = cast_saturating(saturate(weights[spec.name] - copy[spec.name]), spec.dtype)
            parts += self.compressor.encode(change, self._key(spec, words)).parts
        return Payload(tuple(parts))

    def apply(self, copy: Weights, payload: Payload, *words: int | str) -> dict[str, Tensor]:
        """The copy after this change; DecodeError for a payload that no server sends."""
        parts = iter(expect_parts(payload, sum(self.num_parts), "the model's change"))
        after = {}
        for spec, count in zip(self.layers, self.num_parts, strict=True):
            layer = Payload(tuple(next(parts) for _ in range(count))).to(spec.device)
            after[spec.name] = saturate(copy[spec.name] + self.compressor.decode(layer, spec, self._key(spec, words)))
            if not all_finite(after[spec.name]):
                raise DecodeError(f"{spec.name}: the model's change is not finite")
        return after

    def _key(self, spec: TensorSpec, words: tuple[int | str, ...]) -> Key:
        return derive_key(self.seed, _DOWNLINK_KEY, *words, spec.name)


class PerWorkerCopies:
    """The copy ŵ of each worker: workers pull at different times, so their copies differ.

    A reply may be lost. So a change is pending until the worker's next message says how many changes it has received;
    if it lacks the last one, that is discarded and computed again.
    """

    def __init__(self, codec: DownlinkCodec) -> None:
        self.codec = codec
        self.copies: dict[str, dict[str, Tensor]] = {}
        self.pending: dict[str, dict[str, Tensor]] = {}
        self.num_sent: dict[str, int] = {}

    def start(self, worker: str, weights: Weights) -> None:
        """The worker gets the whole model and has received no change yet."""
        self.copies[worker] = {name: tensor.clone() for name, tensor in weights.items()}
        self.pending.pop(worker, None)
        self.num_sent[worker] = 0

    def reply(self, worker: str, changes_received: int, weights: Weights) -> Payload:
        """The next change for a worker; Rejected if its number of received changes is impossible."""
        sent = self.num_sent[worker]
        if changes_received == sent:
            self.copies[worker] = self.pending.pop(worker, self.copies[worker])
        elif changes_received == sent - 1 and worker in self.pending:
            sent -= 1
        else:
            raise Rejected(
                OUT_OF_SYNC, f"{worker} was sent {sent} changes and reports {changes_received} received; join again"
            )
        payload = self.codec.encode(weights, self.copies[worker], worker, sent)
        self.pending[worker] = self.codec.apply(self.copies[worker], payload, worker, sent)
        self.num_sent[worker] = sent + 1
        return payload

    def forget(self, worker: str) -> None:
        """Drop the copy of a worker that has left."""
        for table in (self.copies, self.pending, self.num_sent):
            table.pop(worker, None)

    def state_dict(self) -> dict[str, Any]:
        """All copies."""
        return {"copies": dict(self.copies), "pending": dict(self.pending), "num_sent": dict(self.num_sent)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore stored copies."""
        self.copies, self.pending = dict(state["copies"]), dict(state["pending"])
        self.num_sent = {worker: int(count) for worker, count in state["num_sent"].items()}


class SharedCopy:
    """One copy ŵ for all clients, one change per round: ŵ_r+1 = ŵ_r + C(w_r+1 - ŵ_r), ŵ_0 = w_0.

    A client that missed rounds is sent all changes since its own, or the whole ŵ where that is shorter or the changes
    have too many parts for a frame. So changes are kept only while their sum is shorter than the model.
    """

    def __init__(self, codec: DownlinkCodec | None, weights: Weights) -> None:
        self.codec = codec
        self.model = {name: tensor.clone() for name, tensor in weights.items()}
        self.round = 0
        self.log: dict[int, Payload] = {}  # round -> the change that led to it

    def advance(self, weights: Weights, round: int) -> None:
        """Compute the change that leads to this round."""
        if self.codec is None:
            self.model = {name: tensor.clone() for name, tensor in weights.items()}
        else:
            self.log[round] = self.codec.encode(weights, self.model, round)
            self.model = self.codec.apply(self.model, self.log[round], round)
            dense = sum(tensor.nbytes for tensor in self.model.values())
            while self.log and sum(change.num_bytes for change in self.log.values()) >= dense:
                del self.log[min(self.log)]
        self.round = round

    def payload_since(self, model_round: int) -> tuple[bool, Payload]:
        """(is it the whole model?, payload) for a client that holds the model of this round; -1 for none."""
        missing = range(model_round + 1, self.round + 1)
        has_changes = 0 <= model_round <= self.round and all(r in self.log for r in missing)
        if not has_changes or sum(len(self.log[r].parts) for r in missing) > MAX_PARTS:
            return True, dense_payload(self.model)
        return False, Payload(tuple(part for r in missing for part in self.log[r].parts))

    def state_dict(self) -> dict[str, Any]:
        """The copy and the changes that are kept."""
        log = {round: list(change.parts) for round, change in self.log.items()}
        return {"model": dict(self.model), "round": self.round, "log": log}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a stored copy."""
        self.model, self.round = dict(state["model"]), int(state["round"])
        self.log = {int(round): Payload(tuple(parts)) for round, parts in state["log"].items()}


def split_changes(payload: Payload, codec: DownlinkCodec, first: int, last: int) -> Iterator[tuple[int, Payload]]:
    """The changes of rounds first ... last from one payload."""
    size = sum(codec.num_parts)
    parts = expect_parts(payload, size * (last - first + 1), "the model's changes")
    for place, round in enumerate(range(first, last + 1)):
        yield round, Payload(parts[place * size : (place + 1) * size])
