"""Compare three counts of a composition's traffic: claimed bits, metered bytes, bytes of the network interfaces."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from thinwire.catalog import parse
from thinwire.core import CompositionError, IncompatibleParts, TensorSpec, derive_key, near_square
from thinwire.drivers.meter import HEADER, Meter, Traffic
from thinwire.drivers.processes import run_ranks
from thinwire.drivers.torch_dist import TorchDist
from thinwire.exchange import Exchanger

from .counters import Counts, read_counts
from .network import DEVICE, network

_VERIFY_KEY = "verify"  # frozen: makes the random bits

LIMIT_PERCENT = 3.0
_REPEATS = 3  # TCP may retransmit on a busy machine: the repeat with the fewest bytes is used


@dataclass(frozen=True)
class Comparison:
    """Two counts of the same bytes. The expected ones include the driver's headers and gloo's message overhead."""

    rank: int
    what: str  # "payload": claimed bits and payload bytes; "sent", "received": metered and interface bytes
    expected_bytes: float
    headers: float
    gloo: float
    found_bytes: float

    @property
    def percent(self) -> float:
        """By how much the found bytes exceed the expected ones, in percent."""
        if not self.expected_bytes:
            return math.inf if self.found_bytes else 0.0
        return 100 * (self.found_bytes / self.expected_bytes - 1)

    @property
    def holds(self) -> bool:
        return abs(self.percent) <= LIMIT_PERCENT


@dataclass(frozen=True)
class Verification:
    """Sums over the steps of the repeat with the fewest bytes, by rank."""

    composition: str
    workers: int
    shape: tuple[int, int]
    steps: int
    model_bits: float  # of all ranks
    requests: int  # of one rank
    comparisons: tuple[Comparison, ...]

    @property
    def holds(self) -> bool:
        return all(comparison.holds for comparison in self.comparisons)

    def as_json(self) -> dict[str, Any]:
        percents = [c.percent if math.isfinite(c.percent) else None for c in self.comparisons]  # JSON has no infinity
        rows = [asdict(c) | {"percent": p, "holds": c.holds} for c, p in zip(self.comparisons, percents, strict=True)]
        return asdict(self) | {"comparisons": rows, "limit_percent": LIMIT_PERCENT, "holds": self.holds}


def verify(composition: str, workers: int = 2, numel: int = 1_000_000, steps: int = 5) -> Verification:
    """Exchange one layer of `numel` float32 values on real processes, in a network without shaping.

    Raises:
        CompositionError: the composition is invalid, or cannot exchange this layer.
    """
    if numel < 1:
        raise ValueError(f"verify: numel must be at least 1, got {numel}")
    shape = near_square(numel, exact=True)  # some parts need a matrix
    Exchanger([TensorSpec("layer", shape)], parse(composition))  # raises before any process starts
    if workers < 2:
        raise ValueError(f"verify: one worker sends nothing: workers must be at least 2, got {workers}")
    with network(workers) as net, tempfile.TemporaryDirectory(prefix="thinwire-") as folder:
        argument = {"composition": composition, "shape": shape, "steps": steps, "folder": folder}
        results = run_ranks(
            workers, "thinwire_lab.testbed.verify:exchange_and_count", argument, command_prefixes=net.command_prefixes()
        )
    if refusals := [result["refused"] for result in results if "refused" in result]:
        raise CompositionError(f"{composition}: {refusals[0]}")
    repeat = min(range(_REPEATS), key=lambda r: sum(result["repeats"][r]["counts"][0] for result in results))
    return compare_counts(composition, shape, steps, [result["repeats"][repeat] for result in results])


def compare_counts(
    composition: str, shape: tuple[int, int], steps: int, counted: Sequence[dict[str, Any]]
) -> Verification:
    """Three comparisons per rank, from the results of `count_repeat`."""
    rows = []
    for rank, repeat in enumerate(counted):
        total, headers = Traffic(**repeat["total"]), Traffic(**repeat["headers"])
        sent, received = Counts(*repeat["counts"]).without_frames()
        out, back = repeat["gloo"]
        rows.append(Comparison(rank, "payload", total.model_bits / 8, 0.0, 0.0, total.payload_bytes))
        rows.append(Comparison(rank, "sent", total.sent_bytes + out, headers.sent_bytes, out, sent))
        rows.append(Comparison(rank, "received", total.received_bytes + back, headers.received_bytes, back, received))
    bits = sum(repeat["total"]["model_bits"] for repeat in counted)
    return Verification(composition, len(counted), shape, steps, bits, counted[0]["total"]["requests"], tuple(rows))


def exchange_and_count(driver: TorchDist, argument: dict[str, Any], on_progress: object) -> dict[str, Any]:
    """One rank's part: metered bytes and interface counts of each repeat."""
    try:
        with TorchDist() as plain:  # sums by gloo, as in training; `driver` sums in rank order
            count_repeat(plain, argument, "warm up")  # opens the connections
            return {"repeats": [count_repeat(plain, argument, str(repeat)) for repeat in range(_REPEATS)]}
    except (CompositionError, IncompatibleParts) as error:
        return {"refused": str(error)}


def count_repeat(driver: TorchDist, argument: dict[str, Any], repeat: str) -> dict[str, Any]:
    """The same steps from the beginning in every repeat."""
    rank, size = driver.world
    layer = TensorSpec("layer", tuple(argument["shape"]))
    exchanger = Exchanger([layer], parse(argument["composition"]))
    folder, gloo_before = Path(argument["folder"]), driver.peers.gloo_bytes()
    driver.set_meter(Meter())
    _file_barrier(folder, f"{repeat}-before", rank, size)
    before = read_counts(DEVICE)
    _file_barrier(folder, f"{repeat}-start", rank, size)
    for step in range(argument["steps"]):
        generator = torch.Generator().manual_seed(derive_key(_VERIFY_KEY, step, rank) >> 1)
        tensor = torch.randn(layer.shape, generator=generator)
        driver.run(exchanger.run_step({"layer": tensor}, step, driver.world))
    _file_barrier(folder, f"{repeat}-end", rank, size)
    counts = read_counts(DEVICE).since(before)
    headers = driver.meter.sum_by("kind").get(HEADER, Traffic())
    gloo = [now - then for now, then in zip(driver.peers.gloo_bytes(), gloo_before, strict=True)]
    return {"total": asdict(driver.meter.total()), "headers": asdict(headers), "gloo": gloo, "counts": list(counts)}


def _file_barrier(folder: Path, name: str, rank: int, size: int) -> None:
    """Wait for all ranks without using the network, then a little longer for its last acknowledgements."""
    (folder / f"{name}-{rank}").touch()
    while not all((folder / f"{name}-{other}").exists() for other in range(size)):
        time.sleep(0.01)
    time.sleep(0.1)
