"""Bars split into parts, and maps of a number by layer and step."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from .scales import format_number
from .svg import FONT_SIZE, HEAT_COLOURS, colour, fit, fit_layer, picture, text, text_width

WIDTH = 380
BAR_ROW, BAR_TOP = 32, 30
NAMES, CELL_ROW, MAP_TOP, MOST_STEPS = 128, 12, 30, 80  # of a heat map: room for names, row height, columns
# The same levels in every report, so that a colour means the same everywhere; 1 is the error of sending nothing.
LEVELS = (0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.001, 2.0)

Bar = tuple[str, Mapping[str, float]]  # a label and the sizes of its parts


def bar_chart(
    title: str, bars: Sequence[Bar], parts: Sequence[str], write: Callable[[float], str], shares: bool = False
) -> str:
    """Draw one bar per label, split as its parts are, all on one scale; with `shares` each fills the whole width.

    Labels stand above their bars, so that long ones have room on a phone, and totals at the right.
    """
    totals = [sum(sizes.values()) for _, sizes in bars]
    most = max(totals, default=0.0)
    body = heading(title)
    for row, ((label, sizes), total) in enumerate(zip(bars, totals, strict=True)):
        y = BAR_TOP + row * BAR_ROW
        amount = write(total)
        body += text(0, y + 9, fit(label, WIDTH - text_width(amount) - 12)) + text(WIDTH, y + 9, amount, "end")
        body += _stack(y + 14, sizes, parts, WIDTH / ((total if shares else most) or 1.0), total, write)
    height = BAR_TOP + len(bars) * BAR_ROW
    key, below = squares([(part, colour("kind", at)) for at, part in enumerate(parts)], height)
    return picture(title, WIDTH, height + below, body + key)


def heading(title: str) -> str:
    return text(0, 14, fit(title, WIDTH, 13), look='font-size="13" font-weight="600"')


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
            body += f'style="fill:{colour("kind", at)}"><title>{tip}</title></rect>'
            x += scale * size
    return body


def squares(entries: Sequence[tuple[str, str]], top: float) -> tuple[str, float]:
    """Draw the legend of the parts; a single part needs none."""
    if len(entries) < 2:
        return "", 0.0
    body, x, y = "", 0.0, top
    for name, fill in entries:
        wide = 16 + text_width(name) + 12
        if x > 0 and x + wide > WIDTH:
            x, y = 0.0, y + 17
        body += f'<rect x="{x:.1f}" y="{y + 3:.1f}" width="10" height="10" style="fill:{fill}"/>'
        body += text(x + 15, y + 12, name)
        x += wide
    return body, y + 20 - top


def level(value: float) -> int:
    """Return which of the map's colours a relative error has."""
    return bisect_left(LEVELS, value)


def thin(count: int, most: int = MOST_STEPS) -> list[int]:
    """Return at most `most` of the numbers below `count`, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(at * (count - 1) / (most - 1)) for at in range(most)]


def heat_map(title: str, steps: Sequence[float], layers: Mapping[str, Sequence[float | None]]) -> str:
    """Draw a number by layer (rows) and step (columns) in the colours of LEVELS; what is not finite stays empty."""
    wide = cell_width(len(steps))
    cells = [""] * len(HEAT_COLOURS)
    body = heading(title)
    for row, (name, values) in enumerate(layers.items()):
        y = MAP_TOP + row * CELL_ROW
        body += text(NAMES - 6, y + 9.5, fit_layer(name, NAMES - 8, 10), "end", 'font-size="10"')
        for column, value in enumerate(values):
            if value is not None and math.isfinite(value):
                # one path per colour: a rectangle per cell would make the page many times as long
                x = NAMES + column * wide
                cells[level(value)] += f"M{x:.1f} {y}h{wide:.2f}v{CELL_ROW - 1}h-{wide:.2f}z"
    for at, data in enumerate(cells):
        if data:
            body += f'<path class="cells" d="{data}" style="fill:{colour("heat", at)}"/>'
    bottom = MAP_TOP + len(layers) * CELL_ROW
    written = 0.0
    for column in thin(len(steps), 5):
        words = format_number(steps[column])
        half = text_width(words) / 2
        x = min(max(NAMES + (column + 0.5) * wide, NAMES + half), WIDTH - half)
        if x - half > written:
            body += text(x, bottom + 13, words, "middle")
            written = x + half
    body += text(NAMES - 6, bottom + 13, "step", "end")
    return picture(title, WIDTH, bottom + 52, body + _scale(bottom + 22))


def cell_width(columns: int) -> float:
    return (WIDTH - NAMES) / max(1, columns)


def place_of_cells(columns: int) -> dict[str, Any]:
    """Return where the cells of a map lie, for whoever wants to know which one is pointed at."""
    return {"left": NAMES, "top": MAP_TOP, "width": cell_width(columns), "height": CELL_ROW}


def _scale(top: float) -> str:
    """Draw the colours with the bounds between them."""
    wide = WIDTH / len(HEAT_COLOURS)
    body = ""
    for at in range(len(HEAT_COLOURS)):
        body += f'<rect x="{at * wide:.1f}" y="{top:.1f}" width="{wide:.1f}" height="9" '
        body += f'style="fill:{colour("heat", at)}"/>'
    for at, bound in enumerate(LEVELS):
        body += text((at + 1) * wide, top + 22, f"{bound:.2g}", "middle", f'font-size="{FONT_SIZE - 1}"')
    return body
