"""Line plots with a choice of axes: the data that script.js draws, and their SVG without a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .charts import SMALL, Curve, Size, render_line_chart
from .scales import Axis, to_finite, to_json_number
from .seeds import Column, Run, average_curves
from .tables import TargetLevel

MEASURES = {
    "loss": Axis("loss", "number", log=True),
    "train_loss": Axis("training loss", "number", log=True),
    "accuracy": Axis("accuracy", "percent", log=False),
    "perplexity": Axis("perplexity", "number", log=True),
    "grad_norm": Axis("gradient norm", "number", log=True),
    "consensus": Axis("consensus distance", "number", log=True),
    "rank0_loss": Axis("loss of rank 0 alone", "number", log=True),
    "rank0_accuracy": Axis("accuracy of rank 0 alone", "percent", log=False),
    "rank0_perplexity": Axis("perplexity of rank 0 alone", "number", log=True),
}
COSTS = {
    "wire_bytes": Axis("wire bytes sent by rank 0", "bytes", log=True),
    "payload_bytes": Axis("payload bytes of rank 0", "bytes", log=True),
    "step": Axis("step", "number", log=False),
    "seconds": Axis("seconds", "seconds", log=False),
}
SIMULATED = Axis("seconds of the simulation, all workers in one process", "seconds", log=False)


@dataclass(frozen=True)
class PlotLine:
    """One curve with all its columns; `spreads` are standard deviations over `seeds` seeds."""

    label: str
    style: int
    columns: Mapping[str, Sequence[float | None]]
    spreads: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    seeds: int = 1
    points: bool = False
    steps: bool = False


@dataclass(frozen=True)
class Plot:
    """Curves and the axes they may be drawn on; the first axis of each kind is the default."""

    name: str
    xs: Mapping[str, Axis]
    ys: Mapping[str, Axis]
    lines: Sequence[PlotLine]
    targets: Mapping[str, float] = field(default_factory=dict)
    capped: bool = True

    def svg(self, x: str, y: str, size: Size = SMALL, key: bool = False) -> str:
        """Return the chart for one choice of axes."""
        return render_line_chart(
            [_curve(line, x, y) for line in self.lines],
            self.xs[x],
            self.ys[y],
            target=self.targets.get(y),
            size=size,
            capped=self.capped,
            key=key,
        )

    def table(self, x: str, y: str) -> tuple[list[str], list[list[Any]]]:
        """Return the columns and rows of one choice of axes, for a CSV file."""
        rows = []
        for line in self.lines:
            curve = _curve(line, x, y)
            spreads = curve.spread or [None] * len(curve.ys)
            rows += [
                [line.label, to_json_number(a), to_json_number(b), to_json_number(c), line.seeds]
                for a, b, c in zip(curve.xs, curve.ys, spreads, strict=False)
            ]
        return ["curve", x, y, f"{y}_std", "seeds"], rows

    def to_json(self) -> dict[str, Any]:
        return {
            "xs": {key: _axis_to_json(axis) for key, axis in self.xs.items()},
            "ys": {key: _axis_to_json(axis) for key, axis in self.ys.items()},
            "targets": self.targets,
            "capped": self.capped,
            "lines": [
                {
                    "label": line.label,
                    "style": line.style,
                    "points": line.points,
                    "steps": line.steps,
                    "seeds": line.seeds,
                    "columns": self._to_columns(line.columns),
                    "spreads": self._to_columns(line.spreads),
                }
                for line in self.lines
            ],
        }

    def _to_columns(self, columns: Mapping[str, Sequence[float | None]]) -> dict[str, list[float | int | None]]:
        used = {*self.xs, *self.ys}
        return {name: [to_json_number(value) for value in column] for name, column in columns.items() if name in used}


def _curve(line: PlotLine, x: str, y: str) -> Curve:
    xs, ys = line.columns.get(x, []), line.columns.get(y, [])
    return Curve(line.label, line.style, xs, ys, line.points, line.steps, line.spreads.get(y, ()))


def _axis_to_json(axis: Axis) -> dict[str, Any]:
    return {"title": axis.title, "unit": axis.unit, "log": axis.log}


def build_group_plot(
    name: str, members: Mapping[str, Sequence[Run]], styles: Mapping[str, int], target: TargetLevel | None
) -> Plot | None:
    """Return the plot of a group's training curves, None if it has none."""
    lines = []
    for label, runs in members.items():
        columns, spreads = average_curves(runs)
        lines.append(PlotLine(label, styles[label], columns, spreads, len(runs)))
    present = {key for line in lines for key, column in line.columns.items() if any(v is not None for v in column)}
    sent = any(any(value for value in line.columns.get("wire_bytes", [])) for line in lines)
    costs = [key for key in COSTS if key in present and (sent or key != "wire_bytes")]
    xs = {key: COSTS[key] for key in costs}
    if "seconds" in xs and all(run.get("driver") == "lockstep" for runs in members.values() for run in runs):
        xs["seconds"] = SIMULATED
    ys = {key: axis for key, axis in MEASURES.items() if key in present}
    if not xs or not ys:
        return None
    return Plot(name, xs, ys, lines, {target.metric: target.value} if target else {})


def choose_metrics(plot: Plot) -> list[str]:
    """Return the default metrics of a group's two charts: a loss, and accuracy or perplexity if present."""
    order = ("loss", "train_loss", "grad_norm"), ("accuracy", "perplexity", "train_loss", "grad_norm")
    chosen: list[str] = []
    for keys in order:
        chosen += [key for key in keys if key in plot.ys and key not in chosen][:1]
    return chosen or list(plot.ys)[:1]


def build_histogram_plots(
    name: str, members: Mapping[str, Sequence[Run]], styles: Mapping[str, int]
) -> dict[str, Plot]:
    """Return a plot per quantity ("w", "|g|") of a group: the share of coordinates in each bin, of each method."""
    lines: dict[str, list[PlotLine]] = {}
    for label, runs in members.items():
        # bins need not agree between seeds, so one seed is shown: the first that has any
        histograms: Mapping[str, Any] = next((run["histograms"] for run in runs if run.get("histograms")), {})
        for quantity, bins in histograms.items():
            shares = normalize_counts(bins["counts"])
            edges = [to_finite(edge) for edge in bins["edges"]]
            columns = {"x": edges, "y": [*shares, None]}
            lines.setdefault(quantity, []).append(PlotLine(label, styles[label], columns, steps=True))
    plots: dict[str, Plot] = {}
    for quantity, found in lines.items():
        known = [edge for line in found for edge in line.columns["x"] if edge is not None]
        wide = bool(known) and min(known) > 0 and max(known) > 100 * min(known)
        x, y = Axis(quantity, "number", log=wide), Axis("share of coordinates", "percent", log=True)
        plots[quantity] = Plot(f"{name}-histogram-{len(plots)}", {"x": x}, {"y": y}, found, capped=False)
    return plots


def normalize_counts(counts: Sequence[object]) -> Column:
    """Return counts as shares of their sum."""
    numbers = [to_finite(count) or 0.0 for count in counts]
    total = sum(numbers)
    return [number / total if total else None for number in numbers]
