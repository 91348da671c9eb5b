"""A plot of step time against link rate from the results of `thinwire bench ddp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..reporting.charts import LARGE, Curve, render_line_chart
from ..reporting.scales import Axis
from ..reporting.svg import to_standalone
from ..testbed.network import rate_bits

LEFT_OUT = ("copies", "buckets", "bare hook", "dense()", "ef21")  # methods too close to another one for a picture


def draw_steps(results: Sequence[Mapping[str, Any]], model: str, file: Path) -> None:
    """Draw one curve per method but LEFT_OUT; unshaped links are left out."""
    tables = sorted(
        ((rate_bits(table["rate"]) or 0.0, table["rows"]) for table in results if table["model"] == model),
        key=lambda pair: pair[0],
    )
    shaped = [(bits, rows) for bits, rows in tables if bits]
    labels = list(dict.fromkeys(row["method"] for _, rows in shaped for row in rows))
    labels = [label for label in labels if not any(text in label for text in LEFT_OUT)]
    curves = []
    for style, label in enumerate(labels):
        points = [(bits, row) for bits, rows in shaped for row in rows if row["method"] == label]
        seconds = [row["step_ms"]["median"] / 1e3 for _, row in points]
        curves.append(Curve(label, style, [bits / 1e6 for bits, _ in points], seconds))
    axes = Axis("link (Mbit/s)", "number", True), Axis(f"a step of {model}", "seconds", True)
    file.write_text(to_standalone(render_line_chart(curves, *axes, size=LARGE, key=True)), encoding="utf-8")
