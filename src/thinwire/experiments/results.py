"""What a run leaves: plain JSON. Tables and reports read only this."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import __version__
from ..drivers.meter import Meter

MEASURES = ("loss", "grad_norm", "accuracy", "payload_bytes", "wire_bytes")


class Curve:
    """Measures by step; bytes are those this worker has sent so far."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.columns: dict[str, list[float]] = {name: [] for name in ("step", *MEASURES)}

    def add(self, step: int, loss: float, grad_norm: float, accuracy: float) -> None:
        traffic = self.meter.total()
        row = (step, loss, grad_norm, accuracy, traffic.payload_bytes, traffic.sent_bytes)
        for column, value in zip(self.columns.values(), row, strict=True):
            column.append(value)

    def steps_to(self, loss: float) -> int | None:
        """The first recorded step at which the loss was no more than this."""
        pairs = zip(self.columns["step"], self.columns["loss"], strict=True)
        return next((int(step) for step, reached in pairs if reached <= loss), None)

    def to_dict(self) -> dict[str, Any]:
        final = {name: self.columns[name][-1] for name in MEASURES}
        measure = "sent_bytes" if self.meter.total().sent_bytes else "payload_bytes"  # a world of one sends nothing
        kinds = {str(kind): getattr(traffic, measure) for kind, traffic in self.meter.by("kind").items()}
        dense = sorted({where.layer for where in self.meter.rows if where.kind == "dense"})
        return {"curve": self.columns, "final": final, "bytes_by_kind": kinds, "dense_layers": dense}


def versions() -> dict[str, str]:
    import numpy
    import torch

    return {
        "thinwire": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def save_result(result: Mapping[str, Any], path: Path) -> None:
    """As strict JSON: what is not finite becomes null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plain(result), indent=1) + "\n")


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
