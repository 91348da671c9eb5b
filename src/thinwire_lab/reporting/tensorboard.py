"""Curves for TensorBoard, written by torch's SummaryWriter; needs the extra `tensorboard`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from thinwire.core import MissingExtra

from ..configuration.slugs import slugify


def require_tensorboard() -> None:
    """Raise MissingExtra if the package tensorboard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtra(
            "--tensorboard needs the package tensorboard, which is not installed: pip install 'thinwire[tensorboard]'"
        )


def write_scalars(result: dict[str, Any], folder: Path) -> None:
    """Write one folder per run, with one scalar per measure and step."""
    require_tensorboard()
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
