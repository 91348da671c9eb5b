"""Metrics for any logger: what a handle has sent, spent and skipped since the last call, as a flat dict of floats."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from .report import TrafficReport

PREFIX = "thinwire/"
TIMES = {
    "in hooks": "hook_ms",
    "encoding and decoding": "encode_ms",
    "sending": "send_ms",
    "waiting": "wait_ms",
}  # kinds of work, and their metrics


class _Totals(NamedTuple):
    """Figures that only grow, as of one report."""

    steps: int
    sent_bytes: float
    received_bytes: float
    dense_bytes: float
    skipped_steps: int
    resynced_tensors: int
    seconds: Mapping[str, float]
    decisions: int = 0
    plan_changes: int = 0
    controller_s: float = 0.0
    plan_bytes: float = 0.0

    @classmethod
    def of(cls, report: TrafficReport) -> _Totals:
        totals = cls(
            report.steps, report.sent_bytes, report.received_bytes, report.dense_bytes, report.skipped_steps,
            report.resynced_tensors, dict(report.seconds),
        )  # fmt: skip
        adapting = report.adapting
        if adapting is None:
            return totals
        return totals._replace(
            decisions=adapting.decisions,
            plan_changes=adapting.changes,
            controller_s=adapting.seconds,
            plan_bytes=adapting.num_bytes,
        )


class IntervalMetrics:
    """Differences between the totals of two reports. The first interval begins with the handle."""

    def __init__(self) -> None:
        self._last = _Totals(0, 0.0, 0.0, 0.0, 0, 0, {})

    def update(self, report: TrafficReport) -> dict[str, float]:
        """End an interval: its metrics. Times are means per step; bytes and counts are sums of the interval."""
        last, now = self._last, _Totals.of(report)
        self._last = now
        steps, sent = now.steps - last.steps, now.sent_bytes - last.sent_bytes
        metrics = {
            "steps": float(steps),
            "sent_bytes": sent,
            "received_bytes": now.received_bytes - last.received_bytes,
            "skipped_steps": float(now.skipped_steps - last.skipped_steps),
            "resynced_tensors": float(now.resynced_tensors - last.resynced_tensors),
        }
        if sent > 0 and steps > 0:  # loggers draw no point rather than a NaN
            metrics["saving"] = (now.dense_bytes - last.dense_bytes) / sent
        for kind, seconds in now.seconds.items():
            name = TIMES.get(kind, f"{kind.replace(' ', '_')}_ms")
            metrics[name] = 1e3 * (seconds - last.seconds.get(kind, 0.0)) / max(1, steps)
        if report.adapting is not None:
            metrics["controller/decisions"] = float(now.decisions - last.decisions)
            metrics["controller/plan_changes"] = float(now.plan_changes - last.plan_changes)
            metrics["controller/ms"] = 1e3 * (now.controller_s - last.controller_s) / max(1, steps)
            metrics["controller/sent_bytes"] = now.plan_bytes - last.plan_bytes
        return {PREFIX + name: value for name, value in metrics.items()}


class MetricsMethods:
    """What handles with a report have in common."""

    def report(self) -> TrafficReport:
        """Return bytes, saving and times so far."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Return flat figures of the steps since the last call, for any logger; sends nothing.

        Returns:
            `thinwire/steps`, `thinwire/sent_bytes`, `thinwire/received_bytes`, `thinwire/saving`,
            `thinwire/skipped_steps`, `thinwire/resynced_tensors`; milliseconds per step by kind of work, such as
            `thinwire/encode_ms`, `thinwire/send_ms`, `thinwire/wait_ms`; with a controller its decisions, changes of
            plan, time and bytes. They are those of this rank.

        Example:
            ```python
            wandb.log(handle.metrics(), step=step)
            ```
        """
        return self._interval.update(self.report())

    @cached_property
    def _interval(self) -> IntervalMetrics:
        return IntervalMetrics()
