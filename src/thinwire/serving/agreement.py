"""What a server and its workers must have alike, and what secures the line between them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..core import CompositionError, TensorSpec, check_int
from ..drivers.sockets import Secret, Tls, read_secret
from ..sync.uplink import digest_of, form_of
from ..wire import MAX_FRAME, fingerprint_of, frame_limit

SECRET = "THINWIRE_SECRET"  # the environment variable
_MOST_FRAME = 1 << 30  # unless more is given: so much memory one peer may ask for
File = str | Path


@dataclass(frozen=True)
class Agreement:
    """Settings that both sides are given; a worker whose settings differ is refused, and told which.

    task: any name. rounds: federated; 0: workers push gradients. max_frame: MiB; each side may have its own.
    """

    caller: str
    task: str = "model"
    exchange: str = "dense()"
    down: str | None = None
    rounds: int = 0
    seed: int = 1
    max_frame: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or not self.task:
            raise CompositionError(f"{self.caller}: task must be a name, got {self.task!r}; both sides give the same")
        for name, usual in (("exchange", "ef(topk(density=0.01))"), ("down", "topk(density=0.01)")):
            text = getattr(self, name)
            if not isinstance(text, str) and not (name == "down" and text is None):
                raise CompositionError(f'{self.caller}: {name} must be a text such as "{usual}", got {text!r}')
        check_int(self.caller, "rounds", self.rounds, 0, "0: workers push gradients, without rounds")
        check_int(self.caller, "seed", self.seed)
        if self.max_frame is not None:
            check_int(self.caller, "max_frame", self.max_frame, 1, "64 MiB is usual")

    def settings(self, layers: Sequence[TensorSpec]) -> dict[str, Any]:
        """All that both sides must have alike, so that a difference can be named."""
        numbers, digest = sum(spec.numel for spec in layers), digest_of(form_of(layers))
        about = f"{len(layers)} with {numbers} numbers ({digest})"
        down = self.down or "dense"
        fields = {"task": self.task, "exchange": self.exchange, "down": down, "rounds": self.rounds, "seed": self.seed}
        return {**fields, "layers": about}

    def line(self, layers: Sequence[TensorSpec]) -> dict[str, Any]:
        """What a `Listener` and a `Connection` are given of it."""
        texts = (self.task, self.exchange, self.down or "dense", self.rounds, self.seed)
        limit = longest_frame(layers, None if self.max_frame is None else self.max_frame << 20)
        return {"fingerprint": fingerprint_of(layers, *texts), "settings": self.settings(layers), "max_frame": limit}


def longest_frame(layers: Sequence[TensorSpec], given: int | None = None) -> int:
    """Bytes that one frame may have: those given, or else 64 MiB, or what a model needs that has more, up to 1 GiB.

    A worker gets the whole model when it joins, whatever is sent later; so a limit below that is refused here.
    """
    model = frame_limit([]) + sum(spec.numel * spec.dtype.itemsize for spec in layers)
    limit = given or (frame_limit(layers) if model <= MAX_FRAME else frame_limit(layers, cap=_MOST_FRAME))
    if model > limit:
        need, got = -(-model // (1 << 20)), limit >> 20
        raise CompositionError(
            f"max_frame: this model needs {need} MiB, the limit is {got}; "
            f"give max_frame={need} (--max-frame-mib {need})"
        )
    return limit


@dataclass(frozen=True)
class Credentials:
    """Files that keep others out: a secret that both sides hold, or certificates. Without: this machine alone."""

    secret_file: File | None = None
    tls_certificate: File | None = None
    tls_key: File | None = None
    tls_ca: File | None = None

    def line(self) -> dict[str, Any]:
        """What a `Listener` and a `Connection` are given of them."""
        files = (self.tls_certificate, self.tls_key, self.tls_ca)
        return {"secret": self._secret(), "tls": Tls(*files) if any(files) else None}

    def _secret(self) -> Secret | None:
        if self.secret_file is not None:
            return read_secret(file=self.secret_file)
        return read_secret(environment=SECRET) if SECRET in os.environ else None


def trained_tensors(caller: str, model: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters that are trained, by name; buffers and frozen parameters stay each process's own."""
    if isinstance(model, nn.Module):
        found: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    elif isinstance(model, Mapping) and all(isinstance(tensor, Tensor) for tensor in model.values()):
        found = dict(model)
    else:
        raise CompositionError(f"{caller}: the model must be a torch.nn.Module or tensors by name, got {model!r:.60}")
    if not found:
        raise CompositionError(f"{caller}: the model has no parameter that requires a gradient")
    return found
