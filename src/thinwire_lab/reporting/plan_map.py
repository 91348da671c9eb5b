"""Maps of a controller's plans: which option each layer had at which steps."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from thinwire.core import format_bytes

from .bars import CELL_ROW, MAP_TOP, NAMES, WIDTH, pick_evenly, render_legend, render_title
from .pictures import Picture
from .scales import format_number, to_finite, to_json_number
from .seeds import Run
from .svg import css_color, estimate_width, shorten_layer, svg_document, svg_text

# The same bounds in every report, so that colors compare between reports.
SAVINGS = (1.5, 3, 6, 12, 25, 50, 100)
ROW = CELL_ROW + 3  # with a line at the bottom of a cell, colored by the option's part
MAX_PLANS = 60
_FONT_SIZE = 7.5  # of the text inside cells


class PlanSegment(NamedTuple):
    """Consecutive steps in which a layer had the same option."""

    begin: float
    end: float
    option: str
    num_bytes: float | None
    saving: float | None


def draw_plan_map(name: str, label: str, runs: Sequence[Run]) -> Picture | None:
    """Return the map of a method's plans, of the first seed that has any; None without a controller."""
    run = next((run for run in runs if run.get("plans")), None)
    if run is None:
        return None
    plans: list[Mapping[str, Any]] = run["plans"]
    last = float(max(run.get("steps") or 0, plans[-1]["step"] + 1))
    layers = list(plans[0]["layers"])
    rows = {layer: list(split_segments(plans, layer, last)) for layer in layers}
    title = f"Plan of each layer: {label}"
    columns = ["layer", "from_step", "to_step", "option", "expected_bytes", "expected_saving"]
    table = [
        [
            layer,
            to_json_number(s.begin),
            to_json_number(s.end),
            s.option,
            to_json_number(s.num_bytes),
            to_json_number(s.saving),
        ]
        for layer, found in rows.items()
        for s in found
    ]
    return Picture(f"{name}-plans", title, render_plan_map(title, rows, last), columns, table)


def split_segments(plans: Sequence[Mapping[str, Any]], layer: str, last: float) -> Iterator[PlanSegment]:
    """Yield the options of one layer; equal consecutive plans are one segment."""
    plans = [plans[at] for at in pick_evenly(len(plans), MAX_PLANS)]
    before: PlanSegment | None = None
    for at, plan in enumerate(plans):
        end = float(plans[at + 1]["step"]) if at + 1 < len(plans) else last
        chosen = plan["layers"][layer]
        if before is not None and before.option == chosen["option"]:
            before = before._replace(end=end)
            continue
        if before is not None and before.end > before.begin:
            yield before
        before = PlanSegment(
            float(plan["step"]), end, chosen["option"], to_finite(chosen["bytes"]), to_finite(chosen["saving"])
        )
    if before is not None:
        yield before


def render_plan_map(title: str, rows: Mapping[str, Sequence[PlanSegment]], last: float) -> str:
    """Return segments by layer over steps; colors are expected savings, lines are parts, texts are settings."""
    parts = sorted({part_name(s.option) for found in rows.values() for s in found})
    scale = (WIDTH - NAMES) / last
    body = render_title(title)
    for row, (layer, found) in enumerate(rows.items()):
        y = MAP_TOP + row * ROW
        body += svg_text(NAMES - 6, y + 10, shorten_layer(layer, NAMES - 8, 10), "end", 'font-size="10"')
        for s in found:
            body += _cell(s, NAMES + scale * s.begin, y, scale * (s.end - s.begin), parts)
    bottom = MAP_TOP + len(rows) * ROW
    for at, step in enumerate((0.0, last / 2, last)):
        anchor = ("start", "middle", "end")[at]
        body += svg_text(NAMES + scale * step, bottom + 13, format_number(step), anchor)
    body += svg_text(NAMES - 6, bottom + 13, "step", "end")
    body += _scale(bottom + 24)
    key, below = render_legend([(one, css_color("series", at + 1)) for at, one in enumerate(parts)], bottom + 54)
    return svg_document(title, WIDTH, bottom + 54 + below, body + key)


def _cell(s: PlanSegment, x: float, y: float, wide: float, parts: Sequence[str]) -> str:
    level = 0 if s.saving is None else bisect_left(SAVINGS, s.saving)
    tip = f"{s.option}, steps {s.begin:g} to {s.end:g}"
    if s.num_bytes is not None and s.saving is not None:
        tip += f": {format_bytes(s.num_bytes)} a step expected, {s.saving:.3g}× less than dense"
    body = f'<g><title>{escape(tip)}</title><rect x="{x:.1f}" y="{y:.1f}" width="{max(0.3, wide - 0.5):.2f}" '
    body += f'height="{ROW - 1}" style="fill:{css_color("heat", level)}"/>'
    if len(parts) > 1:
        line = css_color("series", parts.index(part_name(s.option)) + 1)
        body += f'<rect x="{x:.1f}" y="{y + ROW - 3.5:.1f}" width="{max(0.3, wide - 0.5):.2f}" height="2.5" '
        body += f'style="fill:{line}"/>'
    label = main_setting(s.option) if len(parts) < 2 else f"{part_name(s.option)} {main_setting(s.option)}"
    label = label if estimate_width(label, _FONT_SIZE) < wide - 2 else main_setting(s.option)
    if estimate_width(label, _FONT_SIZE) < wide - 2:
        ink = "var(--heat-0,#ffffff)" if level > 4 else "currentColor"
        body += f'<text x="{x + 2:.1f}" y="{y + 8.5:.1f}" font-size="{_FONT_SIZE}" '
        body += f'style="fill:{ink}">{escape(label)}</text>'
    return body + "</g>"


def _scale(top: float) -> str:
    """Return the color scale of savings with the bounds between its colors."""
    wide = WIDTH / (len(SAVINGS) + 1)
    body = ""
    for at in range(len(SAVINGS) + 1):
        body += f'<rect x="{at * wide:.1f}" y="{top:.1f}" width="{wide:.1f}" height="9" '
        body += f'style="fill:{css_color("heat", at)}"/>'
    for at, bound in enumerate(SAVINGS):
        body += svg_text((at + 1) * wide, top + 21, f"{bound:g}×", "middle", 'font-size="10"')
    return body


def part_name(option: str) -> str:
    """Return the part's name of an option such as "topk(density=0.01)"."""
    return option.partition("(")[0]


def main_setting(option: str) -> str:
    """Return the first number of an option, or the part's name if it has none."""
    found = re.search(r"=\s*([\d.e+-]+)", option)
    return found.group(1) if found else part_name(option)
