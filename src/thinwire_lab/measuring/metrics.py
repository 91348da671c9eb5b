"""What is seen of a run: curves, bytes, errors of what was sent, layer by layer, and the sizes of what is sent from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from thinwire.adaptation import entry_texts
from thinwire.core import Seen, TensorSpec
from thinwire.drivers.meter import Traffic

from ..configuration.config import METRICS, TargetMetric
from ..tasks.base import Learner
from .plans import cost_of_choosing, plans_of

if TYPE_CHECKING:
    from ..running.worker import Worker

BYTES = ("payload_bytes", "wire_bytes")
MOST_COLUMNS = 60  # of a heatmap
BINS = 40
BUFFER = "buffer: "  # before the names of buffers, among averaged tensors


class Watch:
    """Sees, in watched steps, how far what was sent is from what was wished."""

    def __init__(self) -> None:
        self._targets: Mapping[str, Tensor] = {}
        self.errors: dict[str, float] = {}

    def look_at(self, targets: Mapping[str, Tensor]) -> None:
        """What layers wish to send in the step that begins; none: do not look."""
        self._targets, self.errors = targets, {}

    def look_on(self, targets: Mapping[str, Tensor]) -> None:
        """Look at this round; errors of layers that it does not send stay those of their last round."""
        self._targets = targets

    def see(self, spec: TensorSpec, seen: Seen) -> None:
        target = self._targets.get(spec.name)
        if target is not None:
            size = float(target.double().norm())
            missed = float((target.double() - seen.reduced.sent.double().view(target.shape)).norm())
            self.errors[spec.name] = missed / size if size else 0.0


class Observer:
    """Looks at rank 0's worker now and then; the others hold the same weights, or it is shown their mean."""

    def __init__(self, worker: Worker, target: TargetMetric | None) -> None:
        self.worker, self.target = worker, target
        self.columns: dict[str, list[float | None]] = {}
        self.heat: dict[str, list[float]] = {}
        self.reached = False

    def look(self, step: int, mean: Mapping[str, Tensor] | None = None, consensus: float | None = None) -> None:
        """Figures of the worker's weights; given the mean of all ranks', of that, with its own beside ("rank0_...")."""
        with self.worker.clock.timing("measure"):
            measured: dict[str, float | None] = {**self.worker.learner.measure()}
            if mean is not None:
                own = {f"rank0_{name}": value for name, value in measured.items()}
                measured = {**measured_at(self.worker.learner, mean), **own, "consensus": consensus}
        traffic = self.worker.meter.total()
        row = {"step": float(step), "grad_norm": None, **measured}
        row |= {"payload_bytes": traffic.payload_bytes, "wire_bytes": traffic.sent_bytes}
        if self.worker.clock.keep_steps:
            row["seconds"] = self.worker.clock.elapsed()
        for name, value in row.items():
            self.columns.setdefault(name, []).append(value)
        value = row.get(self.target.measure) if self.target is not None else None
        self.reached = self.target is not None and value is not None and self.target.reached(value)

    def look_back(self) -> None:
        """At the step that was watched."""
        if self.columns["grad_norm"][-1] is None:
            self.columns["grad_norm"][-1] = self.worker.gradient_norm
        errors = self.worker.watch.errors
        for layer in self.worker.learner.parameters if self.worker.rounds is not None else errors:
            self.heat.setdefault(layer, []).append(errors.get(layer, 0.0))  # nothing is lost before a first round

    def news(self, step: int, steps: int) -> dict[str, Any]:
        """For those who watch it run."""
        last = {name: column[-1] for name, column in self.columns.items()}
        loss = last.get("loss", last.get("train_loss"))
        finite = loss if loss is not None and math.isfinite(loss) else None
        return {"step": step, "steps": steps, "loss": finite, "bytes": last["wire_bytes"] or last["payload_bytes"]}

    def state_dict(self) -> dict[str, Any]:
        return {"columns": self.columns, "heat": self.heat, "reached": self.reached}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.columns = {name: list(column) for name, column in state["columns"].items()}
        self.heat = {name: list(errors) for name, errors in state["heat"].items()}
        self.reached = bool(state["reached"])

    def result(self) -> dict[str, Any]:
        worker, known = self.worker, {name: c for name, c in self.columns.items() if any(v is not None for v in c)}
        measured = "sent_bytes" if worker.meter.total().sent_bytes else "payload_bytes"  # a world of one sends nothing
        return {
            "curve": known,
            "final": {name: _last(column) for name, column in known.items()},
            "best": {name: _best(name, known[name]) for name in METRICS if name in known},
            "bytes_by_kind": _by(worker.meter.by("kind"), measured),
            "bytes_by_layer": {k: v for k, v in _by(worker.meter.by("layer"), measured).items() if k},
            "dense_layers": sorted({where.layer for where in worker.meter.rows if where.kind == "dense"}),
            "bytes_by_bucket": self._by_bucket(measured),
            "plans": plans_of(worker.exchanger, worker.world.size),
            "plan": entry_texts(worker.exchanger, worker.exchanger.plan),
            "adapting": cost_of_choosing(worker.exchanger, worker.meter),
            "skipped_steps": worker.exchanger.skipped_steps,
            "steps_to_target": self._steps_to_target(),
            "heatmap": self._heatmap(),
            "histograms": histograms(worker),
        }

    def _by_bucket(self, measured: str) -> list[float]:
        """Of what is exchanged together, in order."""
        layers = _by(self.worker.meter.by("layer"), measured)
        return [sum(layers.get(name, 0.0) for name in names) for names in self.worker.buckets]

    def _steps_to_target(self) -> int | None:
        if self.target is None or self.target.measure not in self.columns:
            return None
        pairs = zip(self.columns["step"], self.columns[self.target.measure], strict=True)
        return next((int(s) for s, v in pairs if s is not None and v is not None and self.target.reached(v)), None)

    def _heatmap(self) -> dict[str, Any]:
        if not self.heat:
            return {}
        count = len(next(iter(self.heat.values())))
        at = range(0, count, math.ceil(count / MOST_COLUMNS))
        parameters = self.worker.learner.parameters
        return {
            "steps": [self.columns["step"][i] for i in at],
            "layers": {name: [errors[i] for i in at] for name, errors in self.heat.items()},
            "sizes": {name: parameters[name].numel() for name in self.heat},
        }


def measured_at(learner: Learner, point: Mapping[str, Tensor]) -> dict[str, float]:
    """Figures with other weights and buffers; the learner's own are there again afterwards, to the last bit."""
    own = {name: p.detach().clone() for name, p in learner.parameters.items()}
    buffers = learner.state_dict()
    there = {name: point.get(f"{BUFFER}{name}", held) for name, held in buffers.items()}
    try:
        _put(learner, point, there)
        return dict(learner.measure())
    finally:
        _put(learner, own, buffers)


def _put(learner: Learner, weights: Mapping[str, Tensor], buffers: Mapping[str, Any]) -> None:
    with torch.no_grad():
        for name, parameter in learner.parameters.items():
            parameter.copy_(weights[name])
    learner.load_state_dict(buffers)


def histograms(worker: Worker) -> dict[str, Any]:
    """Of the last average's magnitudes, and of w where there is one; by powers of ten, zeros left out."""
    shown = {"|g|": [p.grad for p in worker.learner.parameters.values() if p.grad is not None]}
    shown["w"] = list(worker.exchanger.importance.values())
    return {name: histogram(tensors) for name, tensors in shown.items() if tensors}


def histogram(tensors: Sequence[Tensor]) -> dict[str, list[float]]:
    """Counts of |x| over all tensors; every bin is as wide as the others on a log axis."""
    values = torch.cat([t.detach().double().abs().flatten() for t in tensors])
    logs = values[(values > 0) & values.isfinite()].log10()
    if not logs.numel():
        return {"edges": [0.1, 1.0], "counts": [0.0]}
    low, high = float(logs.min()), float(logs.max())
    high = high if high > low else low + 1.0
    counts = torch.histc(logs, BINS, low, high)
    edges = torch.linspace(low, high, BINS + 1, dtype=torch.float64)
    return {"edges": (10.0**edges).tolist(), "counts": counts.tolist()}


def _by(rows: Mapping[str | int, Traffic], measured: str) -> dict[str, float]:
    return {str(key): getattr(traffic, measured) for key, traffic in rows.items()}


def _last(column: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(column) if value is not None), None)


def _best(name: str, column: Sequence[float | None]) -> float | None:
    values = [value for value in column if value is not None and math.isfinite(value)]
    return (max if name == "accuracy" else min)(values, default=None)
