"""Stacked bar charts, and heat maps of a number by layer and step, as SVG."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from .scales import format_number
from .svg import FONT_SIZE, HEAT_COLORS, css_color, estimate_width, shorten, shorten_layer, svg_document, svg_text

WIDTH = 380
BAR_ROW, BAR_TOP = 32, 30
NAMES, CELL_ROW, MAP_TOP, MAX_STEPS = 128, 12, 30, 80  # of a heat map: name width, row height, top, columns
# The same levels in every report, so that reports compare; 1 is the error of sending nothing.
LEVELS = (0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.001, 2.0)

Bar = tuple[str, Mapping[str, float]]  # label, size of each part


def render_bars(
    title: str, bars: Sequence[Bar], parts: Sequence[str], write: Callable[[float], str], shares: bool = False
) -> str:
    """Return one stacked bar per label, all on one scale; with `shares` each bar fills the whole width.

    Labels are above their bars, so that long ones fit on a phone; totals are at the right.
    """
    totals = [sum(sizes.values()) for _, sizes in bars]
    most = max(totals, default=0.0)
    body = render_title(title)
    for row, ((label, sizes), total) in enumerate(zip(bars, totals, strict=True)):
        y = BAR_TOP + row * BAR_ROW
        amount = write(total)
        body += svg_text(0, y + 9, shorten(label, WIDTH - estimate_width(amount) - 12)) + svg_text(
            WIDTH, y + 9, amount, "end"
        )
        body += _stack(y + 14, sizes, parts, WIDTH / ((total if shares else most) or 1.0), total, write)
    height = BAR_TOP + len(bars) * BAR_ROW
    key, below = render_legend([(part, css_color("kind", at)) for at, part in enumerate(parts)], height)
    return svg_document(title, WIDTH, height + below, body + key)


def render_title(title: str) -> str:
    return svg_text(0, 14, shorten(title, WIDTH, 13), look='font-size="13" font-weight="600"')


def _stack(
    y: float,
    sizes: Mapping[str, float],
    parts: Sequence[str],
    scale: float,
    total: float,
    write: Callable[[float], str],
) -> str:
    x, body = 0.0, ""
    for at, part in enumerate(parts):
        size = sizes.get(part, 0.0)
        if size > 0:
            tip = escape(f"{part}: {write(size)} ({100 * size / total:.3g} %)")
            body += f'<rect x="{x:.2f}" y="{y:.1f}" width="{scale * size:.2f}" height="11" '
            body += f'style="fill:{css_color("kind", at)}"><title>{tip}</title></rect>'
            x += scale * size
    return body


def render_legend(entries: Sequence[tuple[str, str]], top: float) -> tuple[str, float]:
    """Return the legend of (name, color) and its height; a single entry needs none."""
    if len(entries) < 2:
        return "", 0.0
    body, x, y = "", 0.0, top
    for name, fill in entries:
        wide = 16 + estimate_width(name) + 12
        if x > 0 and x + wide > WIDTH:
            x, y = 0.0, y + 17
        body += f'<rect x="{x:.1f}" y="{y + 3:.1f}" width="10" height="10" style="fill:{fill}"/>'
        body += svg_text(x + 15, y + 12, name)
        x += wide
    return body, y + 20 - top


def color_level(value: float) -> int:
    """Return the index of a relative error's color in HEAT_COLORS."""
    return bisect_left(LEVELS, value)


def pick_evenly(count: int, max_count: int = MAX_STEPS) -> list[int]:
    """Return at most `max_count` of the numbers below `count`, evenly spaced, with the first and the last."""
    if count <= max_count:
        return list(range(count))
    return [round(at * (count - 1) / (max_count - 1)) for at in range(max_count)]


def render_heat_map(title: str, steps: Sequence[float], layers: Mapping[str, Sequence[float | None]]) -> str:
    """Return a map of a number by layer (rows) and step (columns), colored by LEVELS; non-finite cells stay empty."""
    wide = compute_cell_width(len(steps))
    cells = [""] * len(HEAT_COLORS)
    body = render_title(title)
    for row, (name, values) in enumerate(layers.items()):
        y = MAP_TOP + row * CELL_ROW
        body += svg_text(NAMES - 6, y + 9.5, shorten_layer(name, NAMES - 8, 10), "end", 'font-size="10"')
        for column, value in enumerate(values):
            if value is not None and math.isfinite(value):
                # one path per color: a rectangle per cell would make the page many times as long
                x = NAMES + column * wide
                cells[color_level(value)] += f"M{x:.1f} {y}h{wide:.2f}v{CELL_ROW - 1}h-{wide:.2f}z"
    for at, data in enumerate(cells):
        if data:
            body += f'<path class="cells" d="{data}" style="fill:{css_color("heat", at)}"/>'
    bottom = MAP_TOP + len(layers) * CELL_ROW
    written = 0.0
    for column in pick_evenly(len(steps), 5):
        words = format_number(steps[column])
        half = estimate_width(words) / 2
        x = min(max(NAMES + (column + 0.5) * wide, NAMES + half), WIDTH - half)
        if x - half > written:
            body += svg_text(x, bottom + 13, words, "middle")
            written = x + half
    body += svg_text(NAMES - 6, bottom + 13, "step", "end")
    return svg_document(title, WIDTH, bottom + 52, body + _scale(bottom + 22))


def compute_cell_width(columns: int) -> float:
    return (WIDTH - NAMES) / max(1, columns)


def locate_cells(columns: int) -> dict[str, Any]:
    """Return the position and size of a map's cells; the script uses it to find the cell under the pointer."""
    return {"left": NAMES, "top": MAP_TOP, "width": compute_cell_width(columns), "height": CELL_ROW}


def _scale(top: float) -> str:
    """Return the color scale with the bounds between its colors."""
    wide = WIDTH / len(HEAT_COLORS)
    body = ""
    for at in range(len(HEAT_COLORS)):
        body += f'<rect x="{at * wide:.1f}" y="{top:.1f}" width="{wide:.1f}" height="9" '
        body += f'style="fill:{css_color("heat", at)}"/>'
    for at, bound in enumerate(LEVELS):
        body += svg_text((at + 1) * wide, top + 22, f"{bound:.2g}", "middle", f'font-size="{FONT_SIZE - 1}"')
    return body
