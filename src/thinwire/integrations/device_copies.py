"""One warning where tensors are not on the CPU: messages go through gloo, so they are copied there and back."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from ..core import TensorSpec, format_bytes
from ..drivers.driver import Driver
from ..drivers.meter import Meter


def copied_bytes(meter: Meter) -> tuple[float, float]:
    """Bytes of layers copied to the CPU and back, as counted so far: what is handed over, and what comes of it."""
    rows = [(where, traffic) for where, traffic in meter.rows.items() if where.layer]
    there = sum(traffic.payload_bytes for _, traffic in rows)
    back = sum(t.payload_bytes if where.collective == "AllReduce" else t.received_bytes for where, t in rows)
    return there, back


def copy_warning(
    layers: Sequence[TensorSpec], backend: str, there: float, back: float, unit: str = "step"
) -> str | None:
    """What to tell a user whose layers are on a device; None if all are on the CPU."""
    devices = sorted({str(layer.device) for layer in layers if layer.device.type != "cpu"})
    if not devices:
        return None
    group = "" if backend == "gloo" else f", also for a process group of {backend}"
    return (
        f"layers on {', '.join(devices)}: thinwire sends through gloo on the CPU{group}, so every {unit} copies about "
        f"{format_bytes(there)} from the device and {format_bytes(back)} back. Compare with plain DDP before you decide"
    )


def warn_of_copies(caller: str, layers: Sequence[TensorSpec], driver: Driver, unit: str, group: Any) -> None:
    """After the first step or round, when its bytes have been counted."""
    if driver.world.size == 1:
        return  # nothing is sent
    text = copy_warning(layers, dist.get_backend(group), *copied_bytes(driver.meter), unit)
    if text is not None:
        warnings.warn(f"{caller}: {text}", stacklevel=2)
