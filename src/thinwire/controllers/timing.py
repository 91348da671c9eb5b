"""Calibration for L-GreCo's objective="time": seconds per byte of each bucket, fitted over random plans.

A bucket is a set of layers that are exchanged together. Bytes of the first bucket may overlap with the backward pass,
those of the last never do. Plans must not depend on one rank's clock: a sample is the largest of all ranks' times, and
rank 0's fit is broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import (
    AllReduce,
    Broadcast,
    Context,
    Label,
    LayerMenus,
    LayerObservation,
    Op,
    Payload,
    Plan,
    Program,
    derive_key,
    reduce_labels,
)
from ..core.logs import get_logger
from .base import broadcast_plan
from .least_squares import fit_rates

log = get_logger(__name__)

KEY_WORD = "calibrate"  # frozen: makes the random bits
WARM_UP = 5  # exchanges that are no samples: memory is allocated, buckets are rebuilt
MIN_R2 = 0.5
MIN_WEIGHT = 0.01  # of the largest: where bytes cost no time, fewer are still better
MEASURING, BY_TIME, NO_CLOCK, ONE_BUCKET, FEW_SAMPLES, NO_FIT = range(6)
STATUS_TEXTS = (
    "still measuring",
    "fitted",
    "no rank measured time",
    "all layers are in one bucket",
    "there are fewer samples than coefficients",
    f"R² is below {MIN_R2}",
)


class Timing(NamedTuple):
    """Samples of the calibration, and the fit.

    Layers are those that have a menu, in order.
    """

    seconds: Tensor  # (exchanges,) 0: unknown
    options: Tensor  # (exchanges, layers) the plan of each
    buckets: Tensor  # (layers,) -1: unknown
    rates: Tensor  # (layers,) seconds per byte in the layer's bucket; 0: not fitted
    r2: float
    status: int

    @classmethod
    def empty(cls, exchanges: int, layers: int) -> Timing:
        options = torch.zeros(exchanges, layers, dtype=torch.int32)
        buckets = torch.full((layers,), -1, dtype=torch.int64)
        rates = torch.zeros(layers, dtype=torch.float64)
        return cls(torch.zeros(exchanges, dtype=torch.float64), options, buckets, rates, 0.0, MEASURING)

    @property
    def known_buckets(self) -> list[int]:
        """Buckets that have layers with menus."""
        return sorted({int(bucket) for bucket in self.buckets.tolist() if bucket >= 0})

    def report(self) -> dict[str, Any]:
        by_layer = zip(self.buckets.tolist(), self.rates.tolist(), strict=True)
        return {
            "objective": "time" if self.status == BY_TIME else "bytes",
            "because": STATUS_TEXTS[self.status],
            "seconds_per_mb": {bucket: 1e6 * rate for bucket, rate in sorted(by_layer) if bucket >= 0},
            "r2": self.r2,
        }


def record_sample(timing: Timing, index: int, exchange: int, observation: LayerObservation) -> Timing:
    """Add the time of a layer's exchange. If the layer's bucket is another than before, earlier samples are dropped."""
    if exchange >= len(timing.seconds):
        return timing
    seconds, buckets = timing.seconds.clone(), timing.buckets
    if int(buckets[index]) != observation.bucket:
        buckets = buckets.clone()
        buckets[index] = observation.bucket
        seconds[:exchange] = 0
    if observation.seconds is not None and 0 < observation.seconds < math.inf:
        seconds[exchange] = max(float(seconds[exchange]), observation.seconds)
    return timing._replace(seconds=seconds, buckets=buckets)


def draw_plan(
    plan: Plan, timing: Timing, exchange: int, menus: LayerMenus, ctx: Context
) -> Program[tuple[Plan, Timing]]:
    """Draw a random option for each bucket, the same for all its layers.

    Rank 0's plan is broadcast: a rank that was excluded from an exchange may not know the buckets.
    """
    own = {}
    for at, (spec, menu) in enumerate(menus):
        key = derive_key(ctx.seed, KEY_WORD, exchange, int(timing.buckets[at]))
        own[spec.name] = (key >> 11) * len(menu.options) >> 53
    drawn = yield from broadcast_plan(own, menus)
    options = timing.options.clone()
    options[exchange] = torch.tensor([drawn[spec.name] for spec, _ in menus], dtype=torch.int32)
    return {**plan, **drawn}, timing._replace(options=options)


def fit(timing: Timing, costs: Sequence[Tensor], ctx: Context) -> Program[Timing]:
    """Fit seconds per byte to the largest times of all ranks; the same on all ranks.

    Args:
        timing: this rank's samples.
        costs: bytes of each layer's options; only rank 0 needs them.
        ctx: of this step.
    """
    seconds = yield AllReduce(timing.seconds, Op.MAX, reduce_labels("", timing.seconds, "plan"))
    own = _fit_samples(timing._replace(seconds=seconds), costs) if ctx.world.rank == 0 else timing
    numbers = torch.cat([own.rates, torch.tensor([own.r2, own.status], dtype=torch.float64)])
    label = Label("", "plan", numbers.nbytes, 8.0 * numbers.nbytes)
    received = yield Broadcast(Payload((numbers,)), 0, (label,))
    rates, (r2, status) = received.parts[0][:-2], received.parts[0][-2:].tolist()
    fitted = timing._replace(seconds=seconds, rates=rates.clone(), r2=r2, status=int(status))
    if ctx.world.rank == 0:
        _log_fit(fitted)
    return fitted


def _fit_samples(timing: Timing, costs: Sequence[Tensor]) -> Timing:
    """On rank 0 only."""
    seconds = torch.where(timing.seconds.isfinite(), timing.seconds, 0.0)
    samples = (seconds > 0).nonzero().flatten()
    samples = samples[samples >= WARM_UP]
    buckets = timing.known_buckets
    if not len(samples):
        return timing._replace(status=NO_CLOCK)
    if len(buckets) < 2:
        return timing._replace(status=ONE_BUCKET)
    if len(samples) <= len(buckets) + 1:
        return timing._replace(status=FEW_SAMPLES)
    layers = range(len(costs))
    sent = torch.stack([costs[at].double()[timing.options[samples, at].long()] for at in layers], dim=1)
    sizes = torch.stack([sent[:, timing.buckets == bucket].sum(1) for bucket in buckets], dim=1)  # (samples, buckets)
    fitted = fit_rates(sizes, seconds[samples])
    if not fitted.r2 >= MIN_R2 or not fitted.rates.any():
        return timing._replace(r2=fitted.r2, status=NO_FIT)
    rates = torch.zeros_like(timing.rates)
    for bucket, rate in zip(buckets, fitted.rates, strict=True):
        rates[timing.buckets == bucket] = rate
    return timing._replace(rates=rates, r2=fitted.r2, status=BY_TIME)


def _log_fit(timing: Timing) -> None:
    report = timing.report()
    if timing.status == BY_TIME:
        each = ", ".join(f"{bucket}: {rate:.3g}" for bucket, rate in report["seconds_per_mb"].items())
        log.info("lgreco chooses by time: seconds per MB by bucket %s; R² %.3f", each, timing.r2)
    else:
        log.warning("lgreco chooses by bytes instead of time: %s (R² %.3f)", report["because"], timing.r2)


def byte_weights(timing: Timing) -> Tensor:
    """The weight of a byte of each layer: at most 1, and 1 for all where the fit is not used."""
    if timing.status != BY_TIME:
        return torch.ones(len(timing.buckets), dtype=torch.float64)
    rates = torch.where(timing.buckets >= 0, timing.rates, timing.rates.max())
    return (rates / timing.rates.max()).clamp(min=MIN_WEIGHT)
