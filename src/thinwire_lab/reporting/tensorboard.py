"""Curves for TensorBoard, by torch's own writer; the package tensorboard is an extra."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from thinwire.core import MissingExtra

from ..configuration.slugs import slugify


def check_extra() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtra("TensorBoard's files need the package tensorboard: pip install 'thinwire[tensorboard]'")


def write_scalars(result: dict[str, Any], folder: Path) -> None:
    """One folder a run, one scalar a measure, by step."""
    check_extra()
    from torch.utils.tensorboard import SummaryWriter

    for run in result.get("runs", []):
        place = folder / f"{slugify(run['group'])}--{slugify(run['label'])}--seed{run['seed']}"
        writer = SummaryWriter(str(place))
        steps = run["curve"]["step"]
        for name, column in run["curve"].items():
            for step, value in zip(steps, column, strict=True):
                if name != "step" and value is not None:
                    writer.add_scalar(name, value, int(step))
        writer.close()
