"""The few strokes all pictures are made of, their colours, and a picture that stands on its own.

Colours are CSS variables with a fallback (`--series-0`, `--kind-0`, `--heat-0`, ...), text is `currentColor`, so that
the page around a picture decides between light and dark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

# Okabe and Ito's colours, which stay apart for colour-blind readers; their yellow is darkened to be seen on white.
SERIES_COLOURS = ("currentColor", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7500")
# Five dashes and eight colours share no factor, so the first forty styles all differ.
DASHES = ("", "7 3", "2 3", "10 3 2 3", "5 2 2 2 2 2")
# Parts of a bar are muted blues, grey and sand: they must not be mistaken for methods.
KIND_COLOURS = ("#24476b", "#5b8db8", "#a9c8e0", "#7d7d7d", "#cdb57a", "#8f7638")
# Blue as long as something arrives; orange where the error is larger than that of sending nothing.
HEAT_COLOURS = (
    "#eef4fa", "#d6e5f2", "#b9d3e9", "#98bedd", "#74a5cf", "#5289bd", "#366ea6", "#1f548b", "#e08a3c", "#b3420a",
)  # fmt: skip
INK, PAPER = "#1c1e21", "#ffffff"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
FONT_SIZE = 11
PADDING = 10  # around a picture that stands on its own

SWATCH, LEGEND_ROW = 36, 18


def colour(family: str, index: int) -> str:
    """Return the CSS colour of a curve ("series"), a part of a bar ("kind") or a level of a map ("heat")."""
    colours = {"series": SERIES_COLOURS, "kind": KIND_COLOURS, "heat": HEAT_COLOURS}[family]
    return f"var(--{family}-{index % len(colours)},{colours[index % len(colours)]})"


def stroke(style: int) -> str:
    """Return the attributes of a line in this style."""
    dash = DASHES[style % len(DASHES)]
    return f'style="stroke:{colour("series", style)}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def line(x1: float, y1: float, x2: float, y2: float, look: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" {look}/>'


def text(x: float, y: float, words: str, anchor: str = "start", look: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor" {look}>{escape(words)}</text>'


def mark(x: float, y: float, style: int) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" style="fill:{colour("series", style)}"/>'


def text_width(words: str, size: float = FONT_SIZE) -> float:
    """Return about how wide the words are, rather too much: fonts differ and nobody asks them here."""
    return 0.64 * size * len(words)


def fit(words: str, room: float, size: float = FONT_SIZE) -> str:
    """Shorten the words to the room there is."""
    most = max(3, int(room / (0.64 * size)))
    return words if len(words) <= most else words[: most - 1] + "…"


def fit_layer(name: str, room: float, size: float = FONT_SIZE) -> str:
    """Shorten the name of a layer from the left, modules to first letters: numbers and the end tell layers apart."""
    most = max(3, int(room / (0.64 * size)))
    modules = name.split(".")
    for at, module in enumerate(modules[:-1]):
        if len(".".join(modules)) <= most:
            break
        modules[at] = module if module.isdigit() else module[:1]
    short = ".".join(modules)
    return short if len(short) <= most else "…" + short[len(short) - most + 1 :]


def picture(name: str, width: float, height: float, body: str) -> str:
    """Return one SVG; `name` is what a screen reader says."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(name)}" font-size="{FONT_SIZE}">{body}</svg>'
    )


def swatch(style: int, points: bool = False) -> str:
    """Draw the short line, or the mark, that stands for a style in a legend."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="swatch" viewBox="0 0 {SWATCH} 10" width="{SWATCH}" '
        f'height="10" aria-hidden="true">{_sample(style, points, 0, 5)}</svg>'
    )


def legend(entries: Sequence[tuple[str, int, bool]], left: float, top: float, width: float) -> tuple[str, float]:
    """Draw (label, style, points) in rows from (left, top) on; return it with its height."""
    body, x, y = "", left, top
    for label, style, points in entries:
        shown = fit(label, width - SWATCH - 8)
        wide = SWATCH + 8 + text_width(shown) + 16
        if x > left and x + wide > left + width:
            x, y = left, y + LEGEND_ROW
        body += _sample(style, points, x, y + 9) + text(x + SWATCH + 8, y + 13, shown)
        x += wide
    return body, y + LEGEND_ROW - top if entries else 0.0


def _sample(style: int, points: bool, x: float, y: float) -> str:
    if points:
        return mark(x + SWATCH / 2, y, style)
    return f'<line x1="{x + 1:.1f}" y1="{y:.1f}" x2="{x + 35:.1f}" y2="{y:.1f}" {stroke(style)} stroke-width="2.5"/>'


def standalone(svg: str) -> str:
    """Return a picture that needs no page: light colours written out, a ground, a font and a size of its own."""
    plain = re.sub(r"var\(--[a-z]+-\d+,([^)]*)\)", r"\1", svg).replace("currentColor", INK)
    found = re.match(r'<svg [^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>', plain)
    if not found:
        raise ValueError(f"standalone: needs one of our pictures, got {svg[:60]!r}")
    width, height = (float(side) + 2 * PADDING for side in found.groups())
    box = f'viewBox="{-PADDING} {-PADDING} {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    head = re.sub(r'viewBox="[^"]*"', box, found.group())[:-1] + f' font-family="{FONT}">'
    ground = f'<rect x="{-PADDING}" y="{-PADDING}" width="{width:g}" height="{height:g}" fill="{PAPER}"/>'
    return head + ground + plain[found.end() :] + "\n"
