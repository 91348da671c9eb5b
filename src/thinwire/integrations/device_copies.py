"""A warning if tensors are on a device: messages are sent by gloo, so they are copied to the CPU and back."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from ..core import TensorSpec, format_bytes
from ..drivers.driver import Driver
from ..drivers.meter import Meter


def count_copied_bytes(meter: Meter) -> tuple[float, float]:
    """Return the bytes of layers copied to the CPU and those copied back, as counted so far."""
    rows = [(where, traffic) for where, traffic in meter.rows.items() if where.layer]
    to_cpu = sum(traffic.payload_bytes for _, traffic in rows)
    from_cpu = sum(t.payload_bytes if where.collective == "AllReduce" else t.received_bytes for where, t in rows)
    return to_cpu, from_cpu


def format_copy_warning(
    layers: Sequence[TensorSpec], backend: str, to_cpu: float, from_cpu: float, unit: str = "step"
) -> str | None:
    """Return the warning for layers on a device; None if all are on the CPU."""
    devices = sorted({str(layer.device) for layer in layers if layer.device.type != "cpu"})
    if not devices:
        return None
    group = "" if backend == "gloo" else f", also for a process group of {backend}"
    return (
        f"layers on {', '.join(devices)}: thinwire sends through gloo on the CPU{group}, so every {unit} copies about "
        f"{format_bytes(to_cpu)} from the device and {format_bytes(from_cpu)} back. Compare "
        "the step time with plain DDP"
    )


def warn_of_copies(caller: str, layers: Sequence[TensorSpec], driver: Driver, unit: str, group: Any) -> None:
    """Warn if layers are on a device; called after the first step or round, when its bytes have been counted."""
    if driver.world.size == 1:
        return  # nothing is sent
    text = format_copy_warning(layers, dist.get_backend(group), *count_copied_bytes(driver.meter), unit)
    if text is not None:
        warnings.warn(f"{caller}: {text}", stacklevel=2)
