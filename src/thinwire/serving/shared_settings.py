"""Settings that a server and its workers must share, and the credentials of their connections."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..core import CompositionError, TensorSpec, check_int
from ..drivers.sockets import Secret, Tls, read_secret
from ..sync.config import describe_config, digest_config
from ..wire import MAX_FRAME, fingerprint_of, frame_limit

SECRET_VARIABLE = "THINWIRE_SECRET"
_DEFAULT_MAX_FRAME = 1 << 30  # bytes, without max_frame_mib: as much memory as one peer may make us allocate
File = str | Path


@dataclass(frozen=True)
class SharedSettings:
    """Settings that both sides pass; a worker with other settings is rejected with the differences.

    Args:
        caller: of error texts, "serve" or "join".
        task: any name.
        composition: what workers send through.
        downlink_compression: a compressor for the model, or None.
        rounds: federated rounds; 0: workers push gradients.
        seed: of random compressors and of client sampling.
        max_frame_mib: of this side; the two sides may differ.
    """

    caller: str
    task: str = "model"
    composition: str = "dense()"
    downlink_compression: str | None = None
    rounds: int = 0
    seed: int = 1
    max_frame_mib: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or not self.task:
            raise CompositionError(
                f"{self.caller}: task must be a text that is not empty, got {self.task!r}; use the same on both sides"
            )
        for name, usual in (("composition", "ef(topk(density=0.01))"), ("downlink_compression", "topk(density=0.01)")):
            text = getattr(self, name)
            if not isinstance(text, str) and not (name == "downlink_compression" and text is None):
                raise CompositionError(f'{self.caller}: {name} must be a text such as "{usual}", got {text!r}')
        check_int(self.caller, "rounds", self.rounds, 0, "0: workers push gradients, without rounds")
        check_int(self.caller, "seed", self.seed)
        if self.max_frame_mib is not None:
            check_int(self.caller, "max_frame_mib", self.max_frame_mib, 1, "64 MiB is usual")

    def describe(self, layers: Sequence[TensorSpec]) -> dict[str, Any]:
        """Names and values of everything that both sides must share."""
        numel, digest = sum(spec.numel for spec in layers), digest_config(describe_config(layers))
        return {
            "task": self.task,
            "composition": self.composition,
            "downlink_compression": self.downlink_compression or "dense",
            "rounds": self.rounds,
            "seed": self.seed,
            "layers": f"{len(layers)} with {numel} numbers ({digest})",
        }

    def transport_options(self, layers: Sequence[TensorSpec]) -> dict[str, Any]:
        """Arguments of a `Listener` and a `Connection` that follow from the settings."""
        values = (self.task, self.composition, self.downlink_compression or "dense", self.rounds, self.seed)
        limit = choose_max_frame(layers, None if self.max_frame_mib is None else self.max_frame_mib << 20)
        fingerprint = fingerprint_of(layers, *values)
        return {"fingerprint": fingerprint, "settings": self.describe(layers), "max_frame": limit}


def choose_max_frame(layers: Sequence[TensorSpec], max_frame: int | None = None) -> int:
    """Bytes of the longest frame: `max_frame`, or 64 MiB, or what a larger model needs, up to 1 GiB.

    A worker gets the whole model when it joins, so a limit below the model's size is a CompositionError.
    """
    model = frame_limit([]) + sum(spec.numel * spec.dtype.itemsize for spec in layers)
    limit = max_frame or (frame_limit(layers) if model <= MAX_FRAME else frame_limit(layers, cap=_DEFAULT_MAX_FRAME))
    if model > limit:
        needed, got = -(-model // (1 << 20)), limit >> 20
        raise CompositionError(
            f"max_frame_mib: this model needs {needed} MiB, the limit is {got} MiB; pass max_frame_mib={needed} "
            f"(--max-frame-mib {needed})"
        )
    return limit


@dataclass(frozen=True)
class Credentials:
    """Files for authentication: a secret of both sides, or certificates. Without them only this machine connects."""

    secret_file: File | None = None
    tls_certificate: File | None = None
    tls_key: File | None = None
    tls_ca: File | None = None

    def transport_options(self) -> dict[str, Any]:
        """Arguments of a `Listener` and a `Connection` that follow from the files."""
        files = (self.tls_certificate, self.tls_key, self.tls_ca)
        return {"secret": self._read_secret(), "tls": Tls(*files) if any(files) else None}

    def _read_secret(self) -> Secret | None:
        if self.secret_file is not None:
            return read_secret(file=self.secret_file)
        return read_secret(environment=SECRET_VARIABLE) if SECRET_VARIABLE in os.environ else None


def trained_tensors(caller: str, model: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters that require gradients, by name; buffers and frozen parameters are not shared."""
    if isinstance(model, nn.Module):
        tensors: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    elif isinstance(model, Mapping) and all(isinstance(tensor, Tensor) for tensor in model.values()):
        tensors = dict(model)
    else:
        raise CompositionError(f"{caller}: model must be a torch.nn.Module or tensors by name, got {model!r:.60}")
    if not tensors:
        raise CompositionError(f"{caller}: model has no parameter that requires a gradient")
    return tensors
