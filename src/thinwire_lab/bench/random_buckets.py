"""Buckets of random gradients without a model, exchanged as DDP's hook exchanges its buckets."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from thinwire.catalog import parse
from thinwire.core import TensorSpec
from thinwire.drivers.driver import Driver
from thinwire.exchange import Exchanger

MAX_SIDE = 1024  # of a layer, which is a square matrix
MIN_LAYERS = 8


def make_layers(numel: int) -> list[TensorSpec]:
    """Square layers with about `numel` elements in all: at least MIN_LAYERS, of at most MAX_SIDE rows."""
    side = min(MAX_SIDE, int((numel / MIN_LAYERS) ** 0.5))
    return [TensorSpec(f"layer{i}", (side, side)) for i in range(round(numel / side**2))]


class RandomBuckets:
    """Layers in buckets of about `bucket_mb` megabytes, each bucket one buffer, with an exchanger for all.

    Args:
        layers: of equal size, in the order of the exchange.
        composition: the text.
        bucket_mb: size of a bucket in megabytes.
        seed: of the gradients.
    """

    def __init__(self, layers: list[TensorSpec], composition: str, bucket_mb: float, seed: int) -> None:
        per_bucket = max(1, round(bucket_mb * 1e6 / layers[0].num_bytes))
        names = [spec.name for spec in layers]
        groups = [names[at : at + per_bucket] for at in range(0, len(names), per_bucket)]
        self.exchanger = Exchanger(layers, parse(composition))
        self.noise = torch.randn(per_bucket * layers[0].numel, generator=torch.Generator().manual_seed(seed))
        self.buffers = [torch.empty(len(group) * layers[0].numel) for group in groups]
        self.buckets: list[dict[str, Tensor]] = []
        for group, buffer in zip(groups, self.buffers, strict=True):
            views = buffer.view(len(group), *layers[0].shape)
            self.buckets.append(dict(zip(group, views, strict=True)))

    @property
    def num_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(buffer.nbytes for buffer in self.buffers)

    def fill(self) -> None:
        """Make new gradients; the averages of the last step have overwritten them."""
        for buffer in self.buffers:
            buffer.copy_(self.noise[: buffer.numel()])

    def run_step(self, driver: Driver, step: int, pause_s: float = 0.0) -> float:
        """Exchange all buckets; the averages overwrite the gradients.

        Args:
            driver: runs the programs.
            step: number of the step.
            pause_s: sleep before each bucket, in place of the computation of its gradients.

        Returns:
            Seconds from the first bucket to the last average.
        """
        world, queued = driver.world, [driver.submit(self.exchanger.begin(step, driver.world))]
        began = 0.0
        for at, bucket in enumerate(self.buckets):
            time.sleep(pause_s)
            began = began or time.perf_counter()
            program = self.exchanger.exchange(bucket, step, world, into=bucket)
            queued.append(driver.submit(program, ahead=True, after=queued[0], channel=at))  # type: ignore[arg-type]
        for future in queued:
            future.result()
        self.exchanger.settle()
        return time.perf_counter() - began
