"""One worker's half of a composition, and the server's: what goes up the link, and how it is read there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..aggregators import GatherMean
from ..catalog import parse, part_text
from ..compressors import Identity
from ..core import (
    Aggregator,
    Compressor,
    Context,
    DecodeError,
    Key,
    Payload,
    ProtocolError,
    Request,
    TensorSpec,
    World,
    all_finite,
    derive_key,
    drive,
    saturate,
    send_form_of,
)
from ..core.logs import get_logger
from ..exchange import Exchanger
from .messages import INTERNAL, Refused

_WORKER_KEY = "worker"  # frozen: makes the random bits

log = get_logger(__name__)
_ALONE = World(0, 1)
Composition: TypeAlias = str | Aggregator[Any]  # its text, or itself


class OneWay(NamedTuple):
    """A composition without the other ranks."""

    worker: Aggregator[Any]  # as a worker runs it: the payload it would show to all is what it sends
    compressor: Compressor
    believes: bool  # ef21: only changes travel, so the server keeps what it believes of each worker
    restart: Callable[[Any, Any], Any]  # a layer's state after the server has lost that: (state, fresh state) -> state


def one_way(part: Aggregator[Any]) -> OneWay:
    """The form in which a composition talks to a server. What needs an answer from other ranks is refused, by name."""
    form = send_form_of(part)
    compressor = Identity() if form.compressor is None else form.compressor
    return OneWay(form.assemble(GatherMean(compressor)), compressor, form.sends_differences, form.restart)


def part_of(composition: Composition) -> Aggregator[Any]:
    return parse(composition) if isinstance(composition, str) else composition


def specs_of(weights: Mapping[str, Tensor]) -> list[TensorSpec]:
    return [TensorSpec.of(name, tensor) for name, tensor in weights.items()]


def form_of(layers: Sequence[TensorSpec], *texts: str) -> list[str]:
    """One line for each layer and setting that both sides must have alike, so that a difference can be named."""
    return [f"{s.name} {list(s.shape)} {str(s.dtype).removeprefix('torch.')}" for s in layers] + list(texts)


def digest_of(form: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(form).encode(), digest_size=8).hexdigest()


def form_payload(form: Sequence[str]) -> Payload:
    """A form on its way: JSON as bytes of one part, for the fields of a frame have room for a thousand layers only."""
    return Payload((torch.frombuffer(bytearray(json.dumps(list(form)).encode()), dtype=torch.uint8),))


def check_form(ours: Sequence[str], payload: Payload) -> None:
    """Refused with the lines that differ, the first few of them."""
    mine, parts = form_payload(ours).parts[0], payload.parts
    if len(parts) != 1 or parts[0].dtype != torch.uint8 or parts[0].dim() != 1:
        raise Refused("form", f"join: the form must be one part of bytes, got {[str(p.dtype) for p in parts[:9]]}")
    if parts[0].numel() > 2 * mine.numel() + 65_536:
        raise Refused("form", f"join: the server's form has {mine.numel()} bytes, the worker's {parts[0].numel()}")
    if torch.equal(parts[0].cpu(), mine):
        return
    try:
        theirs = json.loads(bytes(parts[0].tolist()).decode())
    except (ValueError, RecursionError) as error:  # no JSON or no UTF-8, or far too deep
        raise Refused("form", "join: the form cannot be read") from error
    if not isinstance(theirs, list) or not all(isinstance(line, str) for line in theirs):
        raise Refused("form", f"join: form must list layers and settings, got {str(theirs)[:80]!r}")
    if found := form_differences(ours, theirs):
        raise Refused("form", f"join: {'; '.join(found)}")


def form_differences(ours: Sequence[str], theirs: Sequence[str], most: int = 4) -> list[str]:
    """At most so many, each with both values. The last two lines are settings, all before them layers."""
    (layers, settings), (their_layers, their_settings) = (form_parts(form) for form in (ours, theirs))
    width = max(len(layers), len(their_layers))
    names = ["layer"] * width + ["exchange", "down"]
    rows = zip(names, padded(layers, width) + settings, padded(their_layers, width) + their_settings, strict=True)
    texts = [
        f"{name}: {mine or 'nothing'!r} at the server, {clean(other) or 'nothing'!r} at the worker"
        for name, mine, other in rows
        if mine != other
    ]
    return texts[:most] + ([f"and {len(texts) - most} more"] if len(texts) > most else [])


def form_parts(form: Sequence[str]) -> tuple[list[str], list[str]]:
    """Layers, and the two settings behind them."""
    return list(form[:-2]), padded(form[-2:], 2)


def padded(lines: Sequence[str], width: int) -> list[str]:
    return [*lines, *[""] * (width - len(lines))]


def clean(text: str) -> str:
    return text[:200].encode(errors="replace").decode()


def own_seed(seed: int, worker: str) -> Key:
    """What is drawn at random differs from worker to worker, and the server can draw it too."""
    return derive_key(seed, _WORKER_KEY, worker)


class Uplink:
    """A worker's memory and its encoding; what a step changes is pending until the server has answered."""

    def __init__(self, layers: Sequence[TensorSpec], exchange: Composition, worker: str, seed: int = 0) -> None:
        self.way = one_way(part_of(exchange))
        self.exchanger = Exchanger(layers, self.way.worker, seed=own_seed(seed, worker))
        self._given: tuple[int, dict[str, Tensor]] | None = None

    @property
    def unanswered(self) -> bool:
        return self._given is not None

    def encode(self, tensors: Mapping[str, Tensor], step: int) -> Payload | None:
        """The parts of all layers, in the order of the layers; None, and nothing pending, for NaN or infinity."""
        ordered = {name: tensors[name] for name in self.exchanger.layers}
        shown: list[Payload] = []

        def perform(request: Request) -> Any:
            shown.append(request.payload_to(0))
            return request.answer_alone()

        if not drive(self.exchanger.send(ordered, step, _ALONE), perform):
            self.exchanger.settle(good=False)
            return None
        self._given = (step, {name: tensor.detach().clone() for name, tensor in ordered.items()})
        (payload,) = shown
        return Payload(payload.parts)

    def settle(self, accepted: bool, keep_it: bool = False) -> None:
        """Commit on acceptance. Else the memory stays as it was; `keep_it` gives the whole tensor back to it."""
        self.exchanger.settle(good=accepted)
        if not accepted and keep_it and self._given is not None:
            step, tensors = self._given
            self.exchanger.give_back(tensors, step, _ALONE)
        self._given = None

    def state_dict(self) -> dict[str, Any]:
        if self.unanswered:  # committed or not: only the answer knows
            raise ProtocolError("an update is unanswered; store a worker's state when its server has answered")
        return self.exchanger.state_dict()

    def reset(self) -> None:
        """No belief, as of a worker that has sent nothing yet; what was never sent stays in the residuals around it."""
        fresh = Exchanger(list(self.exchanger.layers.values()), self.way.worker, seed=self.exchanger.seed)
        fresh.restart(self.exchanger, self.way.restart)
        self.exchanger, self._given = fresh, None


class Intake:
    """The server's half: payloads to tensors, and under EF21 what it believes of each worker (one model a worker)."""

    def __init__(self, layers: Sequence[TensorSpec], exchange: Composition, seed: int = 0) -> None:
        self.layers = list(layers)
        part = part_of(exchange)
        self.way, self.seed, self.text = one_way(part), seed, part_text(part)
        zeros = [torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device) for spec in self.layers]
        self.counts = [len(self.way.compressor.encode(zero, Key(0)).parts) for zero in zeros]
        self.beliefs: dict[str, dict[str, Tensor]] = {}

    def read(self, payload: Payload, sender: str, step: int) -> dict[str, Tensor]:
        """The worker's tensors, finite and in their shapes; changes nothing. What cannot be read is Refused."""
        if len(payload.parts) != sum(self.counts):
            raise Refused("payload", f"{sum(self.counts)} parts expected, got {len(payload.parts)}")
        ctx, parts = Context(step, _ALONE, own_seed(self.seed, sender)), iter(payload.parts)
        values = {}
        for spec, count in zip(self.layers, self.counts, strict=True):
            mine = Payload(tuple(next(parts) for _ in range(count)))
            values[spec.name] = self._value(sender, spec, self._decode(mine, spec, ctx.key(spec.name, 0), sender))
        return values

    def commit(self, sender: str, values: Mapping[str, Tensor]) -> None:
        if self.way.believes:
            self.beliefs[sender] = dict(values)

    def forget(self, sender: str) -> None:
        self.beliefs.pop(sender, None)

    def _decode(self, payload: Payload, spec: TensorSpec, key: Key, sender: str) -> Tensor:
        try:
            decoded = self.way.compressor.decode(payload.to(spec.device), spec, key)
        except DecodeError as error:
            raise Refused("payload", f"{spec.name}: {error}") from error
        except Exception as error:  # a fault of this decoder, not of the client: the others' round goes on all the same
            name = type(self.way.compressor).__name__
            log.exception("%s failed to decode layer %r of an update of %r", name, spec.name, sender)
            raise Refused(INTERNAL, f"{spec.name}: an error of the server's own {name}; see its log") from error
        if decoded.shape != spec.shape or decoded.dtype != spec.dtype:
            got = f"{tuple(decoded.shape)} {decoded.dtype}"
            raise Refused("payload", f"{spec.name} is {spec.shape} {spec.dtype}, got {got}")
        return decoded.to(spec.work_dtype)

    def _value(self, sender: str, spec: TensorSpec, decoded: Tensor) -> Tensor:
        believed = self.beliefs.get(sender) if self.way.believes else None
        value = decoded if believed is None else saturate(believed[spec.name] + decoded)
        if not all_finite(value):
            raise Refused("finite", f"{spec.name}: the update holds NaN or infinity")
        return value

    def state_dict(self) -> dict[str, Any]:
        return {"beliefs": {sender: dict(values) for sender, values in self.beliefs.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.beliefs = {sender: dict(values) for sender, values in state["beliefs"].items()}
