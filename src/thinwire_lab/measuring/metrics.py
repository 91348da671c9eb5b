"""Metrics of a run: curves, bytes, compression errors per layer, histograms of gradients and importance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from thinwire.controller_report import option_texts
from thinwire.core import LayerObservation, TensorSpec
from thinwire.drivers.meter import Traffic

from ..configuration.config import METRICS, TargetMetric
from ..tasks.base import Learner
from .plan_history import make_plan_history, report_controller_cost

if TYPE_CHECKING:
    from ..running.replica import Replica

BYTE_COLUMNS = ("payload_bytes", "wire_bytes")
MAX_COLUMNS = 60  # of the heatmap of errors
BINS = 40
BUFFER_PREFIX = "buffer: "  # before the names of buffers, among averaged tensors


class ErrorRecorder:
    """Records, in measured steps, the relative error |target - sent| / |target| of each layer."""

    def __init__(self) -> None:
        self._targets: Mapping[str, Tensor] = {}
        self.errors: dict[str, float] = {}

    def set_targets(self, targets: Mapping[str, Tensor]) -> None:
        """The targets of the step that begins; empty: do not record it. Forgets earlier errors."""
        self._targets, self.errors = targets, {}

    def set_round_targets(self, targets: Mapping[str, Tensor]) -> None:
        """The targets of a round. Layers that it does not send keep the errors of their last round."""
        self._targets = targets

    def record(self, spec: TensorSpec, seen: LayerObservation) -> None:
        target = self._targets.get(spec.name)
        if target is not None:
            norm = float(target.double().norm())
            error = float((target.double() - seen.reduced.sent.double().view(target.shape)).norm())
            self.errors[spec.name] = error / norm if norm else 0.0


class MetricsRecorder:
    """Records the curves of rank 0's replica. The other ranks have the same weights, or the mean of all is measured."""

    def __init__(self, replica: Replica, target: TargetMetric | None) -> None:
        self.replica, self.target = replica, target
        self.columns: dict[str, list[float | None]] = {}
        self.layer_errors: dict[str, list[float]] = {}
        self.reached = False

    def record(self, step: int, mean: Mapping[str, Tensor] | None = None, consensus: float | None = None) -> None:
        """Measure the replica, or the `mean` of all if given; the replica's own values are then "rank0_..."."""
        with self.replica.clock.timing("measure"):
            measured: dict[str, float | None] = {**self.replica.learner.measure()}
            if mean is not None:
                own = {f"rank0_{name}": value for name, value in measured.items()}
                measured = {**measure_with(self.replica.learner, mean), **own, "consensus": consensus}
        traffic = self.replica.meter.total()
        row = {"step": float(step), "grad_norm": None, **measured}
        row |= {"payload_bytes": traffic.payload_bytes, "wire_bytes": traffic.sent_bytes}
        if self.replica.clock.keep_steps:
            row["seconds"] = self.replica.clock.elapsed()
        for name, value in row.items():
            self.columns.setdefault(name, []).append(value)
        value = row.get(self.target.metric) if self.target is not None else None
        self.reached = self.target is not None and value is not None and self.target.is_reached(value)

    def record_step(self) -> None:
        """Add the gradient norm and the errors of the step that was just measured."""
        if self.columns["grad_norm"][-1] is None:
            self.columns["grad_norm"][-1] = self.replica.gradient_norm
        errors = self.replica.error_recorder.errors
        for layer in self.replica.learner.parameters if self.replica.rounds is not None else errors:
            self.layer_errors.setdefault(layer, []).append(errors.get(layer, 0.0))  # no error before the first round

    def progress(self, step: int, steps: int) -> dict[str, Any]:
        """For a progress display."""
        last = {name: column[-1] for name, column in self.columns.items()}
        loss = last.get("loss", last.get("train_loss"))
        finite = loss if loss is not None and math.isfinite(loss) else None
        return {"step": step, "steps": steps, "loss": finite, "bytes": last["wire_bytes"] or last["payload_bytes"]}

    def state_dict(self) -> dict[str, Any]:
        return {"columns": self.columns, "layer_errors": self.layer_errors, "reached": self.reached}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.columns = {name: list(column) for name, column in state["columns"].items()}
        self.layer_errors = {name: list(errors) for name, errors in state["layer_errors"].items()}
        self.reached = bool(state["reached"])

    def result(self) -> dict[str, Any]:
        replica, known = self.replica, {name: c for name, c in self.columns.items() if any(v is not None for v in c)}
        counted = "sent_bytes" if replica.meter.total().sent_bytes else "payload_bytes"  # one rank alone sends nothing
        return {
            "curve": known,
            "final": {name: _last(column) for name, column in known.items()},
            "best": {name: _best(name, known[name]) for name in METRICS if name in known},
            "bytes_by_kind": _bytes_by(replica.meter.sum_by("kind"), counted),
            "bytes_by_layer": {k: v for k, v in _bytes_by(replica.meter.sum_by("layer"), counted).items() if k},
            "dense_layers": sorted({where.layer for where in replica.meter.rows if where.kind == "dense"}),
            "bytes_by_bucket": self._bytes_by_bucket(counted),
            "plans": make_plan_history(replica.exchanger, replica.world.size),
            "plan": option_texts(replica.exchanger, replica.exchanger.plan),
            "controller": report_controller_cost(replica.exchanger, replica.meter),
            "skipped_steps": replica.exchanger.skipped_steps,
            "steps_to_target": self._steps_to_target(),
            "heatmap": self._heatmap(),
            "histograms": make_histograms(replica),
        }

    def _bytes_by_bucket(self, counted: str) -> list[float]:
        """Bytes of each bucket, in order."""
        layers = _bytes_by(self.replica.meter.sum_by("layer"), counted)
        return [sum(layers.get(name, 0.0) for name in names) for names in self.replica.buckets]

    def _steps_to_target(self) -> int | None:
        if self.target is None or self.target.metric not in self.columns:
            return None
        pairs = zip(self.columns["step"], self.columns[self.target.metric], strict=True)
        return next((int(s) for s, v in pairs if s is not None and v is not None and self.target.is_reached(v)), None)

    def _heatmap(self) -> dict[str, Any]:
        if not self.layer_errors:
            return {}
        count = len(next(iter(self.layer_errors.values())))
        at = range(0, count, math.ceil(count / MAX_COLUMNS))
        parameters = self.replica.learner.parameters
        return {
            "steps": [self.columns["step"][i] for i in at],
            "layers": {name: [errors[i] for i in at] for name, errors in self.layer_errors.items()},
            "sizes": {name: parameters[name].numel() for name in self.layer_errors},
        }


def measure_with(learner: Learner, point: Mapping[str, Tensor]) -> dict[str, float]:
    """The learner's metrics with other weights and buffers. Its own are restored afterwards, bit for bit."""
    own = {name: p.detach().clone() for name, p in learner.parameters.items()}
    buffers = learner.state_dict()
    averaged = {name: point.get(f"{BUFFER_PREFIX}{name}", held) for name, held in buffers.items()}
    try:
        _load_weights(learner, point, averaged)
        return dict(learner.measure())
    finally:
        _load_weights(learner, own, buffers)


def _load_weights(learner: Learner, weights: Mapping[str, Tensor], buffers: Mapping[str, Any]) -> None:
    with torch.no_grad():
        for name, parameter in learner.parameters.items():
            parameter.copy_(weights[name])
    learner.load_state_dict(buffers)


def make_histograms(replica: Replica) -> dict[str, Any]:
    """Histograms of |g| of the last average, and of the importance w where there is one; log scale, without zeros."""
    tensors_by_name = {"|g|": [p.grad for p in replica.learner.parameters.values() if p.grad is not None]}
    tensors_by_name["w"] = list(replica.exchanger.importance.values())
    return {name: log_histogram(tensors) for name, tensors in tensors_by_name.items() if tensors}


def log_histogram(tensors: Sequence[Tensor]) -> dict[str, list[float]]:
    """Counts of |x| over all tensors in bins of equal width on a log axis."""
    values = torch.cat([t.detach().double().abs().flatten() for t in tensors])
    logs = values[(values > 0) & values.isfinite()].log10()
    if not logs.numel():
        return {"edges": [0.1, 1.0], "counts": [0.0]}
    low, high = float(logs.min()), float(logs.max())
    high = high if high > low else low + 1.0
    counts = torch.histc(logs, BINS, low, high)
    edges = torch.linspace(low, high, BINS + 1, dtype=torch.float64)
    return {"edges": (10.0**edges).tolist(), "counts": counts.tolist()}


def _bytes_by(rows: Mapping[str | int, Traffic], counted: str) -> dict[str, float]:
    return {str(key): getattr(traffic, counted) for key, traffic in rows.items()}


def _last(column: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(column) if value is not None), None)


def _best(name: str, column: Sequence[float | None]) -> float | None:
    values = [value for value in column if value is not None and math.isfinite(value)]
    return (max if name == "accuracy" else min)(values, default=None)
