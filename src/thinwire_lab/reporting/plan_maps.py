"""What each layer was given in the course of a run: a map whose cells name an operator and its setting."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from thinwire.core import format_bytes

from .bars import CELL_ROW, MAP_TOP, NAMES, WIDTH, heading, squares, thin
from .pictures import Picture
from .scales import finite, format_number, short
from .seeds import Run
from .svg import colour, fit_layer, picture, text, text_width

# The same in every report, as for errors: a colour means the same everywhere.
SAVINGS = (1.5, 3, 6, 12, 25, 50, 100)
ROW = CELL_ROW + 3  # and a line at the bottom of a cell for its family
MOST_PLANS = 60
_WORDS = 7.5  # size of the words inside cells


class Stretch(NamedTuple):
    """Steps in which a layer had the same."""

    begin: float
    end: float
    entry: str
    num_bytes: float | None
    saving: float | None


def plan_picture(name: str, label: str, runs: Sequence[Run]) -> Picture | None:
    """Return the map of a method's plans, of the first seed that has any; None if nothing was chosen."""
    held = next((run for run in runs if run.get("plans")), None)
    if held is None:
        return None
    plans: list[Mapping[str, Any]] = held["plans"]
    last = float(max(held.get("steps") or 0, plans[-1]["step"] + 1))
    layers = list(plans[0]["layers"])
    rows = {layer: list(stretches(plans, layer, last)) for layer in layers}
    title = f"What each layer was given: {label}"
    columns = ["layer", "from_step", "to_step", "entry", "expected_bytes", "expected_saving"]
    table = [
        [layer, short(s.begin), short(s.end), s.entry, short(s.num_bytes), short(s.saving)]
        for layer, found in rows.items()
        for s in found
    ]
    return Picture(f"{name}-plans", title, plan_map(title, rows, last), columns, table)


def stretches(plans: Sequence[Mapping[str, Any]], layer: str, last: float) -> Iterator[Stretch]:
    """Return what the layer had; neighbours that are alike are one."""
    plans = [plans[at] for at in thin(len(plans), MOST_PLANS)]
    before: Stretch | None = None
    for at, plan in enumerate(plans):
        end = float(plans[at + 1]["step"]) if at + 1 < len(plans) else last
        given = plan["layers"][layer]
        if before is not None and before.entry == given["entry"]:
            before = before._replace(end=end)
            continue
        if before is not None and before.end > before.begin:
            yield before
        before = Stretch(float(plan["step"]), end, given["entry"], finite(given["bytes"]), finite(given["saving"]))
    if before is not None:
        yield before


def plan_map(title: str, rows: Mapping[str, Sequence[Stretch]], last: float) -> str:
    """Draw stretches by layer over steps; colours are expected savings, lines are families, words name settings."""
    families = sorted({family(s.entry) for found in rows.values() for s in found})
    scale = (WIDTH - NAMES) / last
    body = heading(title)
    for row, (layer, found) in enumerate(rows.items()):
        y = MAP_TOP + row * ROW
        body += text(NAMES - 6, y + 10, fit_layer(layer, NAMES - 8, 10), "end", 'font-size="10"')
        for s in found:
            body += _cell(s, NAMES + scale * s.begin, y, scale * (s.end - s.begin), families)
    bottom = MAP_TOP + len(rows) * ROW
    for at, step in enumerate((0.0, last / 2, last)):
        anchor = ("start", "middle", "end")[at]
        body += text(NAMES + scale * step, bottom + 13, format_number(step), anchor)
    body += text(NAMES - 6, bottom + 13, "step", "end")
    body += _scale(bottom + 24)
    key, below = squares([(one, colour("series", at + 1)) for at, one in enumerate(families)], bottom + 54)
    return picture(title, WIDTH, bottom + 54 + below, body + key)


def _cell(s: Stretch, x: float, y: float, wide: float, families: Sequence[str]) -> str:
    level = 0 if s.saving is None else bisect_left(SAVINGS, s.saving)
    told = f"{s.entry}, steps {s.begin:g} to {s.end:g}"
    if s.num_bytes is not None and s.saving is not None:
        told += f": {format_bytes(s.num_bytes)} a step expected, {s.saving:.3g}× less than dense"
    body = f'<g><title>{escape(told)}</title><rect x="{x:.1f}" y="{y:.1f}" width="{max(0.3, wide - 0.5):.2f}" '
    body += f'height="{ROW - 1}" style="fill:{colour("heat", level)}"/>'
    if len(families) > 1:
        line = colour("series", families.index(family(s.entry)) + 1)
        body += f'<rect x="{x:.1f}" y="{y + ROW - 3.5:.1f}" width="{max(0.3, wide - 0.5):.2f}" height="2.5" '
        body += f'style="fill:{line}"/>'
    words = setting(s.entry) if len(families) < 2 else f"{family(s.entry)} {setting(s.entry)}"
    words = words if text_width(words, _WORDS) < wide - 2 else setting(s.entry)
    if text_width(words, _WORDS) < wide - 2:
        ink = "var(--heat-0,#ffffff)" if level > 4 else "currentColor"
        body += (
            f'<text x="{x + 2:.1f}" y="{y + 8.5:.1f}" font-size="{_WORDS}" style="fill:{ink}">{escape(words)}</text>'
        )
    return body + "</g>"


def _scale(top: float) -> str:
    """Draw the colours of savings with the bounds between them."""
    wide = WIDTH / (len(SAVINGS) + 1)
    body = ""
    for at in range(len(SAVINGS) + 1):
        body += f'<rect x="{at * wide:.1f}" y="{top:.1f}" width="{wide:.1f}" height="9" '
        body += f'style="fill:{colour("heat", at)}"/>'
    for at, bound in enumerate(SAVINGS):
        body += text((at + 1) * wide, top + 21, f"{bound:g}×", "middle", 'font-size="10"')
    return body


def family(entry: str) -> str:
    """Return the operator's name of an entry such as "topk(density=0.01)"."""
    return entry.partition("(")[0]


def setting(entry: str) -> str:
    """Return the first number of an entry, or the operator's name if it has none."""
    found = re.search(r"=\s*([\d.e+-]+)", entry)
    return found.group(1) if found else family(entry)
