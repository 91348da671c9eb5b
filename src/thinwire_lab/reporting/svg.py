"""SVG elements of all pictures, their colors, and standalone pictures.

Colors are CSS variables with a fallback (`--series-0`, `--kind-0`, `--heat-0`, ...), text is `currentColor`, so that
the page around a picture chooses light or dark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

# Okabe and Ito's palette, which color-blind readers can tell apart; its yellow is darkened for a white ground.
SERIES_COLORS = ("currentColor", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7500")
# Five dashes and eight colors share no factor, so the first forty styles all differ.
DASHES = ("", "7 3", "2 3", "10 3 2 3", "5 2 2 2 2 2")
# Parts of a bar are muted blues, gray and sand, unlike the colors of methods.
KIND_COLORS = ("#24476b", "#5b8db8", "#a9c8e0", "#7d7d7d", "#cdb57a", "#8f7638")
# Blue up to the error of sending nothing, orange above it.
HEAT_COLORS = (
    "#eef4fa", "#d6e5f2", "#b9d3e9", "#98bedd", "#74a5cf", "#5289bd", "#366ea6", "#1f548b", "#e08a3c", "#b3420a",
)  # fmt: skip
INK, PAPER = "#1c1e21", "#ffffff"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
FONT_SIZE = 11
PADDING = 10  # around a standalone picture

SWATCH, LEGEND_ROW = 36, 18


def css_color(palette: str, index: int) -> str:
    """Return the CSS color of a curve ("series"), a part of a bar ("kind") or a level of a map ("heat")."""
    colors = {"series": SERIES_COLORS, "kind": KIND_COLORS, "heat": HEAT_COLORS}[palette]
    return f"var(--{palette}-{index % len(colors)},{colors[index % len(colors)]})"


def stroke_style(style: int) -> str:
    """Return the SVG attributes of a line in this style."""
    dash = DASHES[style % len(DASHES)]
    return f'style="stroke:{css_color("series", style)}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def svg_line(x1: float, y1: float, x2: float, y2: float, look: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" {look}/>'


def svg_text(x: float, y: float, words: str, anchor: str = "start", look: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor" {look}>{escape(words)}</text>'


def svg_circle(x: float, y: float, style: int) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" style="fill:{css_color("series", style)}"/>'


def estimate_width(words: str, size: float = FONT_SIZE) -> float:
    """Estimate the width of a text, rather too large: the font is not known."""
    return 0.64 * size * len(words)


def shorten(words: str, max_width: float, size: float = FONT_SIZE) -> str:
    """Shorten a text to a width."""
    max_chars = max(3, int(max_width / (0.64 * size)))
    return words if len(words) <= max_chars else words[: max_chars - 1] + "…"


def shorten_layer(name: str, max_width: float, size: float = FONT_SIZE) -> str:
    """Shorten the name of a layer from the left, modules to first letters: numbers and the end distinguish layers."""
    max_chars = max(3, int(max_width / (0.64 * size)))
    modules = name.split(".")
    for at, module in enumerate(modules[:-1]):
        if len(".".join(modules)) <= max_chars:
            break
        modules[at] = module if module.isdigit() else module[:1]
    short = ".".join(modules)
    return short if len(short) <= max_chars else "…" + short[len(short) - max_chars + 1 :]


def svg_document(name: str, width: float, height: float, body: str) -> str:
    """Return one SVG document; `name` is read by screen readers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(name)}" font-size="{FONT_SIZE}">{body}</svg>'
    )


def svg_swatch(style: int, points: bool = False) -> str:
    """Return the short line or the mark of a style in an HTML legend."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="swatch" viewBox="0 0 {SWATCH} 10" width="{SWATCH}" '
        f'height="10" aria-hidden="true">{_sample(style, points, 0, 5)}</svg>'
    )


def svg_legend(entries: Sequence[tuple[str, int, bool]], left: float, top: float, width: float) -> tuple[str, float]:
    """Return a legend of (label, style, points) in rows from (left, top), and its height."""
    body, x, y = "", left, top
    for label, style, points in entries:
        shown = shorten(label, width - SWATCH - 8)
        wide = SWATCH + 8 + estimate_width(shown) + 16
        if x > left and x + wide > left + width:
            x, y = left, y + LEGEND_ROW
        body += _sample(style, points, x, y + 9) + svg_text(x + SWATCH + 8, y + 13, shown)
        x += wide
    return body, y + LEGEND_ROW - top if entries else 0.0


def _sample(style: int, points: bool, x: float, y: float) -> str:
    if points:
        return svg_circle(x + SWATCH / 2, y, style)
    return (
        f'<line x1="{x + 1:.1f}" y1="{y:.1f}" x2="{x + 35:.1f}" y2="{y:.1f}" {stroke_style(style)} stroke-width="2.5"/>'
    )


def to_standalone(svg: str) -> str:
    """Return a picture that needs no page: light colors written out, with ground, font and size."""
    plain = re.sub(r"var\(--[a-z]+-\d+,([^)]*)\)", r"\1", svg).replace("currentColor", INK)
    found = re.match(r'<svg [^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>', plain)
    if not found:
        raise ValueError(f"to_standalone: needs a picture of this module, got {svg[:60]!r}")
    width, height = (float(side) + 2 * PADDING for side in found.groups())
    box = f'viewBox="{-PADDING} {-PADDING} {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    head = re.sub(r'viewBox="[^"]*"', box, found.group())[:-1] + f' font-family="{FONT}">'
    ground = f'<rect x="{-PADDING}" y="{-PADDING}" width="{width:g}" height="{height:g}" fill="{PAPER}"/>'
    return head + ground + plain[found.end() :] + "\n"
