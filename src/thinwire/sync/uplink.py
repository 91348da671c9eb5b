"""A composition between a worker and its server: how the worker encodes updates and how the server decodes them."""

from __future__ import annotations

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
from .messages import INTERNAL, Rejected

log = get_logger(__name__)
_SINGLE = World(0, 1)
_WORKER_KEY = "worker"  # frozen: makes the random bits
Composition: TypeAlias = str | Aggregator[Any]  # a text, or the aggregator


class UplinkForm(NamedTuple):
    """The form of a composition between one worker and its server."""

    worker: Aggregator[Any]  # run by a worker; the payload that it would all-gather is what it sends
    compressor: Compressor
    keeps_estimates: bool  # EF21: updates are differences, so the server keeps an estimate for each worker
    restart: Callable[[Any, Any], Any]  # (state, fresh state) -> the state after the server has lost its estimate


def uplink_form(part: Aggregator[Any]) -> UplinkForm:
    """The form in which a composition sends to a server; IncompatibleParts if it needs answers of other ranks."""
    form = send_form_of(part)
    compressor = Identity() if form.compressor is None else form.compressor
    return UplinkForm(form.assemble(GatherMean(compressor)), compressor, form.sends_differences, form.restart)


def parse_composition(composition: Composition) -> Aggregator[Any]:
    """The aggregator that a text describes; an aggregator is returned as it is."""
    return parse(composition) if isinstance(composition, str) else composition


def make_specs(weights: Mapping[str, Tensor]) -> list[TensorSpec]:
    """The specs of named tensors."""
    return [TensorSpec.of(name, tensor) for name, tensor in weights.items()]


def worker_seed(seed: int, worker: str) -> Key:
    """The seed of a worker's random compressors: it differs between workers, and the server knows it, too."""
    return derive_key(seed, _WORKER_KEY, worker)


class Uplink:
    """A worker's compressor and its memory; the changes of a step are pending until the server has answered."""

    def __init__(self, layers: Sequence[TensorSpec], composition: Composition, worker: str, seed: int = 0) -> None:
        self.form = uplink_form(parse_composition(composition))
        self.exchanger = Exchanger(layers, self.form.worker, seed=worker_seed(seed, worker))
        self._pending: tuple[int, dict[str, Tensor]] | None = None

    @property
    def is_unanswered(self) -> bool:
        """Whether an update was encoded and not settled yet."""
        return self._pending is not None

    def encode(self, tensors: Mapping[str, Tensor], step: int) -> Payload | None:
        """The parts of all layers, in their order; None, and nothing pending, if the tensors are not finite."""
        ordered = {name: tensors[name] for name in self.exchanger.layers}
        sent: list[Payload] = []

        def perform(request: Request) -> Any:
            sent.append(request.payload_to(0))
            return request.answer_alone()

        if not drive(self.exchanger.send(ordered, step, _SINGLE), perform):
            self.exchanger.settle(good=False)
            return None
        self._pending = (step, {name: tensor.detach().clone() for name, tensor in ordered.items()})
        (payload,) = sent
        return Payload(payload.parts)

    def settle(self, is_accepted: bool, keep_rejected: bool = False) -> None:
        """Commit the memory of an accepted update. With `keep_rejected` a rejected one is added to the residual."""
        self.exchanger.settle(good=is_accepted)
        if not is_accepted and keep_rejected and self._pending is not None:
            step, tensors = self._pending
            self.exchanger.give_back(tensors, step, _SINGLE)
        self._pending = None

    def state_dict(self) -> dict[str, Any]:
        """The memory; ProtocolError while an update is unanswered."""
        if self.is_unanswered:  # only the answer decides whether the memory is committed
            raise ProtocolError("an update is unanswered; store a worker's state when its server has answered")
        return self.exchanger.state_dict()

    def reset(self) -> None:
        """Restart as a worker that has sent nothing yet; residuals that were never sent are kept."""
        fresh = Exchanger(list(self.exchanger.layers.values()), self.form.worker, seed=self.exchanger.seed)
        fresh.restart(self.exchanger, self.form.restart)
        self.exchanger, self._pending = fresh, None


class UpdateDecoder:
    """The server's side: decodes payloads, and under EF21 keeps an estimate for each worker (one model each)."""

    def __init__(self, layers: Sequence[TensorSpec], composition: Composition, seed: int = 0) -> None:
        self.layers = list(layers)
        part = parse_composition(composition)
        self.form, self.seed, self.text = uplink_form(part), seed, part_text(part)
        zeros = [torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device) for spec in self.layers]
        self.num_parts = [len(self.form.compressor.encode(zero, Key(0)).parts) for zero in zeros]
        self.estimates: dict[str, dict[str, Tensor]] = {}

    @property
    def keeps_estimates(self) -> bool:
        """Whether updates are differences to an estimate (EF21)."""
        return self.form.keeps_estimates

    def read(self, payload: Payload, sender: str, step: int) -> dict[str, Tensor]:
        """The worker's tensors, finite and in their shapes; changes nothing. Rejected if they cannot be decoded."""
        if len(payload.parts) != sum(self.num_parts):
            raise Rejected("payload", f"{sum(self.num_parts)} parts expected, got {len(payload.parts)}")
        ctx, parts = Context(step, _SINGLE, worker_seed(self.seed, sender)), iter(payload.parts)
        values = {}
        for spec, count in zip(self.layers, self.num_parts, strict=True):
            layer = Payload(tuple(next(parts) for _ in range(count)))
            values[spec.name] = self._value(sender, spec, self._decode(layer, spec, ctx.key(spec.name, 0), sender))
        return values

    def commit(self, sender: str, values: Mapping[str, Tensor]) -> None:
        """Keep the values of an accepted update as the estimate of its worker, under EF21."""
        if self.keeps_estimates:
            self.estimates[sender] = dict(values)

    def forget(self, sender: str) -> None:
        """Drop the estimate of a worker."""
        self.estimates.pop(sender, None)

    def _decode(self, payload: Payload, spec: TensorSpec, key: Key, sender: str) -> Tensor:
        try:
            decoded = self.form.compressor.decode(payload.to(spec.device), spec, key)
        except DecodeError as error:
            raise Rejected("payload", f"{spec.name}: {error}") from error
        except Exception as error:  # a bug of this decoder, not of the worker: the others continue
            name = type(self.form.compressor).__name__
            log.exception("%s failed to decode layer %r of an update of %r", name, spec.name, sender)
            raise Rejected(INTERNAL, f"{spec.name}: internal error of the server's {name}; see its log") from error
        if decoded.shape != spec.shape or decoded.dtype != spec.dtype:
            got = f"{tuple(decoded.shape)} {decoded.dtype}"
            raise Rejected("payload", f"{spec.name} is {spec.shape} {spec.dtype}, got {got}")
        return decoded.to(spec.work_dtype)

    def _value(self, sender: str, spec: TensorSpec, decoded: Tensor) -> Tensor:
        estimate = self.estimates.get(sender) if self.keeps_estimates else None
        value = decoded if estimate is None else saturate(estimate[spec.name] + decoded)
        if not all_finite(value):
            raise Rejected("finite", f"{spec.name}: the update has a NaN or an infinity")
        return value

    def state_dict(self) -> dict[str, Any]:
        """All estimates."""
        return {"estimates": {sender: dict(values) for sender, values in self.estimates.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore stored estimates."""
        self.estimates = {sender: dict(values) for sender, values in state["estimates"].items()}
