"""What a byte costs in each bucket: measured under random plans, by all ranks' clocks, decided by the first.

A bucket is what is exchanged together. Bytes of the first may hide behind the backward pass, those of the last never
do. No plan follows from one rank's clock: samples are the largest of all ranks', and the first rank's fit is told.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import (
    AllReduce,
    Broadcast,
    Choices,
    Context,
    Label,
    Op,
    Payload,
    Plan,
    Program,
    Seen,
    derive_key,
    reduce_labels,
)
from .deciding import agreed
from .least_squares import fit_rates

log = logging.getLogger("thinwire")

WARM_UP = 5  # exchanges that are not taken for samples: memory is allocated, buckets are rebuilt
LEAST_R2 = 0.5
LEAST_RATE = 0.01  # of the largest: where bytes cost no time, fewer are still better
MEASURING, BY_TIME, NO_CLOCK, ONE_BUCKET, FEW, NO_FIT = range(6)
WORDS = (
    "still measuring",
    "fitted",
    "nobody measured time",
    "all layers are in one bucket",
    "there are fewer samples than coefficients",
    f"R² is below {LEAST_R2}",
)


class Timing(NamedTuple):
    """Of calibration: what each exchange took (0: unknown) under which entries; the bucket of each layer that has a
    menu; then what a byte of each costs in its bucket, in seconds (0: not fitted), R² and what became of it."""

    seconds: Tensor
    entries: Tensor
    buckets: Tensor
    rates: Tensor
    r2: float
    verdict: int

    @classmethod
    def over(cls, exchanges: int, layers: int) -> Timing:
        entries = torch.zeros(exchanges, layers, dtype=torch.int32)
        buckets = torch.full((layers,), -1, dtype=torch.int64)
        rates = torch.zeros(layers, dtype=torch.float64)
        return cls(torch.zeros(exchanges, dtype=torch.float64), entries, buckets, rates, 0.0, MEASURING)

    @property
    def known(self) -> list[int]:
        """Buckets that have layers with menus."""
        return sorted({int(bucket) for bucket in self.buckets.tolist() if bucket >= 0})

    def explained(self) -> dict[str, Any]:
        by_layer = zip(self.buckets.tolist(), self.rates.tolist(), strict=True)
        found = {bucket: 1e6 * rate for bucket, rate in sorted(by_layer) if bucket >= 0}
        trusted = self.verdict == BY_TIME
        return {
            "objective": "time" if trusted else "bytes",
            "because": WORDS[self.verdict],
            "seconds_per_mb": found,
            "r2": self.r2,
        }


def noted(timing: Timing, at: int, exchange: int, seen: Seen) -> Timing:
    """With what was seen of a layer; samples of other buckets than these are forgotten."""
    if exchange >= len(timing.seconds):
        return timing
    seconds, buckets = timing.seconds.clone(), timing.buckets
    if int(buckets[at]) != seen.bucket:
        buckets = buckets.clone()
        buckets[at] = seen.bucket
        seconds[:exchange] = 0
    if seen.seconds is not None and 0 < seen.seconds < math.inf:
        seconds[exchange] = max(float(seconds[exchange]), seen.seconds)
    return timing._replace(seconds=seconds, buckets=buckets)


def drawn(plan: Plan, timing: Timing, exchange: int, choices: Choices, ctx: Context) -> Program[tuple[Plan, Timing]]:
    """A random place on every bucket's ladder, the same for its layers.

    The first rank's, told to all: a rank that could not take part in an exchange may not know the buckets.
    """
    mine = {}
    for at, (spec, menu) in enumerate(choices):
        key = derive_key(ctx.seed, "calibrate", exchange, int(timing.buckets[at]))
        mine[spec.name] = (key >> 11) * len(menu.entries) >> 53
    told = yield from agreed(mine, choices)
    entries = timing.entries.clone()
    entries[exchange] = torch.tensor([told[spec.name] for spec, _ in choices], dtype=torch.int32)
    return {**plan, **told}, timing._replace(entries=entries)


def fitted(timing: Timing, costs: Sequence[Tensor], ctx: Context) -> Program[Timing]:
    """With rates; costs: bytes of each layer's entries, which the first rank alone needs to know."""
    seconds = yield AllReduce(timing.seconds, Op.MAX, reduce_labels("", timing.seconds, "plan"))
    found = _fit(timing._replace(seconds=seconds), costs) if ctx.world.rank == 0 else timing
    mine = torch.cat([found.rates, torch.tensor([found.r2, found.verdict], dtype=torch.float64)])
    told = yield Broadcast(Payload((mine,)), 0, (Label("", "plan", mine.nbytes, 8.0 * mine.nbytes),))
    rates, (r2, verdict) = told.parts[0][:-2], told.parts[0][-2:].tolist()
    found = timing._replace(seconds=seconds, rates=rates.clone(), r2=r2, verdict=int(verdict))
    if ctx.world.rank == 0:
        _say(found)
    return found


def _fit(timing: Timing, costs: Sequence[Tensor]) -> Timing:
    """By the first rank."""
    seconds = torch.where(timing.seconds.isfinite(), timing.seconds, 0.0)
    samples = (seconds > 0).nonzero().flatten()
    samples = samples[samples >= WARM_UP]
    known = timing.known
    if not len(samples):
        return timing._replace(verdict=NO_CLOCK)
    if len(known) < 2:
        return timing._replace(verdict=ONE_BUCKET)
    if len(samples) <= len(known) + 1:
        return timing._replace(verdict=FEW)
    layers = range(len(costs))
    sent = torch.stack([costs[at].double()[timing.entries[samples, at].long()] for at in layers], dim=1)
    sizes = torch.stack([sent[:, timing.buckets == bucket].sum(1) for bucket in known], dim=1)
    fit = fit_rates(sizes, seconds[samples])
    if not fit.r2 >= LEAST_R2 or not fit.rates.any():
        return timing._replace(r2=fit.r2, verdict=NO_FIT)
    rates = torch.zeros_like(timing.rates)
    for bucket, rate in zip(known, fit.rates, strict=True):
        rates[timing.buckets == bucket] = rate
    return timing._replace(rates=rates, r2=fit.r2, verdict=BY_TIME)


def _say(timing: Timing) -> None:
    told = timing.explained()
    if timing.verdict == BY_TIME:
        each = ", ".join(f"{bucket}: {rate:.3g}" for bucket, rate in told["seconds_per_mb"].items())
        log.info("layers are chosen by time: seconds per MB by bucket %s; R² %.3f", each, timing.r2)
    else:
        log.warning("layers are chosen by bytes instead of time: %s (R² %.3f)", told["because"], timing.r2)


def weights_of(timing: Timing) -> Tensor:
    """What a byte of each layer counts for: up to 1, or 1 for all where time is not known."""
    if timing.verdict != BY_TIME:
        return torch.ones(len(timing.buckets), dtype=torch.float64)
    own = torch.where(timing.buckets >= 0, timing.rates, timing.rates.max())
    return (own / timing.rates.max()).clamp(min=LEAST_RATE)
