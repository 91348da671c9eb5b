"""Inline SVG charts as plain functions: data in, one well-formed SVG string out; no scripts, no fonts, no network.

Colours are CSS variables with a fallback (`--series-0` ... `--series-7`, `--kind-0` ... `--kind-5`) and text is
`currentColor`, so that the page around a chart decides between light and dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from thinwire.experiments.scales import Axis, drawable, format_bytes, linear_ticks, log_ticks, padded_range, place

# Okabe and Ito's colours, which stay apart for colour-blind readers; their yellow is darkened to be seen on white.
SERIES_COLOURS = ("currentColor", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7500")
# Five dashes and eight colours share no factor, so the first forty styles all differ.
DASHES = ("", "7 3", "2 3", "10 3 2 3", "5 2 2 2 2 2")
# Kinds of bytes are muted blues, grey and sand: they must not be mistaken for methods.
KIND_COLOURS = ("#24476b", "#5b8db8", "#a9c8e0", "#7d7d7d", "#cdb57a", "#8f7638")

LEFT, RIGHT, TOP, BOTTOM = 50, 24, 30, 48

Point = tuple[float, float]


@dataclass(frozen=True)
class Size:
    """Width and height near those in pixels at which a page shows a chart, so that text keeps its size."""

    width: int
    height: int

    @property
    def plot(self) -> tuple[int, int]:
        """Width and height of what is inside the axes."""
        return self.width - LEFT - RIGHT, self.height - TOP - BOTTOM


SMALL, LARGE = Size(380, 270), Size(590, 400)


@dataclass(frozen=True)
class Curve:
    """One line of a chart; `style` chooses its colour and dash, None stands for a value that was not finite.

    `points` draws marks and no line: for what was measured at a few places.
    """

    label: str
    style: int
    xs: Sequence[float | None]
    ys: Sequence[float | None]
    points: bool = False


def segments(curve: Curve, x_log: bool, y_log: bool) -> list[list[Point]]:
    """Cut a curve at what cannot be drawn. A point at 0 bytes is dropped on a log axis, not moved to its left edge."""
    pieces: list[list[Point]] = [[]]
    for x, y in zip(curve.xs, curve.ys, strict=False):
        if x is not None and y is not None and drawable(x, x_log) and drawable(y, y_log):
            pieces[-1].append((x, y))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def path_data(points: Sequence[Point]) -> str:
    """Return the `d` of a path through points in pixels, leaving out those within half a pixel of the one before."""
    kept = [points[0]]
    for point in points[1:]:
        if max(abs(point[0] - kept[-1][0]), abs(point[1] - kept[-1][1])) >= 0.5:
            kept.append(point)
    if len(kept) == 1:
        kept.append((kept[0][0] + 0.1, kept[0][1]))  # a line of no length is not painted
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in kept)


def line_chart(
    curves: Sequence[Curve],
    x_axis: Axis,
    y_axis: Axis,
    mark: float | None = None,
    size: Size = SMALL,
    capped: bool = True,
) -> str:
    """Draw the curves in one SVG; `mark` is a level to draw across, if it is in view.

    A capped log y axis ends at 100 times the highest start: a diverging curve leaves through the top and squeezes no
    other.
    """
    width, height = size.plot
    pieces = [segments(curve, x_axis.log, y_axis.log) for curve in curves]
    points = [point for piece in pieces for segment in piece for point in segment]
    if not points:
        return _svg(x_axis, y_axis, _text(width / 2 + LEFT, height / 2 + TOP, "no finite values", "middle"), size)
    heights = [y for _, y in points]
    if y_axis.log and capped:
        starts = (next((y for y in curve.ys if y is not None and drawable(y, True)), 0.0) for curve in curves)
        ceiling = 100 * max(starts)
        heights = [y for y in heights if y <= ceiling] or heights
    x_range, y_range = padded_range([x for x, _ in points], x_axis.log), padded_range(heights, y_axis.log)

    def across(x: float) -> float:
        return width * place(x, *x_range, x_axis.log)

    def down(y: float) -> float:
        return height * (1 - place(y, *y_range, y_axis.log))

    body = ""
    for tick in (log_ticks if x_axis.log else linear_ticks)(*x_range, most=5):
        x = LEFT + across(tick)
        body += _line(x, TOP, x, TOP + height, 'stroke-opacity="0.13"')
        body += _text(x, TOP + height + 16, x_axis.write(tick), "middle")
    for tick in (log_ticks if y_axis.log else linear_ticks)(*y_range):
        y = TOP + down(tick)
        body += _line(LEFT, y, LEFT + width, y, 'stroke-opacity="0.13"')
        body += _text(LEFT - 6, y + 4, y_axis.write(tick), "end")
    if mark is not None and drawable(mark, y_axis.log) and y_range[0] <= mark <= y_range[1]:
        y = TOP + down(mark)
        body += f"<g><title>target {escape(y_axis.write(mark))}</title>"
        body += _line(LEFT, y, LEFT + width, y, 'stroke-opacity="0.6" stroke-dasharray="1 3"') + "</g>"
    lines = ""
    for curve, piece in zip(curves, pieces, strict=True):
        drawn = [[(across(x), down(y)) for x, y in segment] for segment in piece]
        lines += _curve(curve, drawn) if drawn else '<g class="curve"/>'  # keeps its place: the legend counts
    # An inner svg clips what leaves the plot without needing an id that must be unique on the page.
    plot = f'<svg x="{LEFT}" y="{TOP}" width="{width}" height="{height}">{lines}</svg>'
    return _svg(x_axis, y_axis, body + plot, size)


def swatch(style: int, points: bool = False) -> str:
    """Draw the short line, or the mark, that stands for a style in a legend."""
    drawn = f'<line x1="1" y1="5" x2="35" y2="5" {_stroke(style)} stroke-width="2.5"/>'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="swatch" viewBox="0 0 36 10" width="36" height="10" '
        f'aria-hidden="true">{_mark(18, 5, style) if points else drawn}</svg>'
    )


def share_bar(parts: Mapping[str, float], kinds: Sequence[str]) -> str:
    """Draw one bar of full width split as the parts are; `kinds` fixes which colour belongs to which part."""
    total, x, body = sum(parts.values()), 0.0, ""
    for kind in kinds:
        width = 100 * parts.get(kind, 0) / total if total else 0.0
        if width > 0:
            name = escape(f"{kind}: {format_bytes(parts[kind])} ({width:.3g} %)")
            body += f'<rect x="{x:.3f}" y="0" width="{width:.3f}" height="10" style="fill:{kind_colour(kind, kinds)}">'
            body += f"<title>{name}</title></rect>"
        x += width
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" '
        f'role="img">{body}</svg>'
    )


def kind_colour(kind: str, kinds: Sequence[str]) -> str:
    """Return the CSS colour of a kind of bytes."""
    index = list(kinds).index(kind) % len(KIND_COLOURS)
    return f"var(--kind-{index},{KIND_COLOURS[index]})"


def _svg(x_axis: Axis, y_axis: Axis, body: str, size: Size) -> str:
    name = escape(f"{y_axis.title} against {x_axis.title}")
    width, height = size.plot
    frame = f'<rect x="{LEFT}" y="{TOP}" width="{width}" height="{height}" fill="none" '
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {size.width} {size.height}" role="img" '
        f'aria-label="{name}" font-size="11">{frame}stroke="currentColor" stroke-opacity="0.35"/>{body}'
        + _text(LEFT, TOP - 12, y_axis.title, "start", 'font-size="13" font-weight="600"')
        + _text(LEFT + width / 2, size.height - 10, x_axis.title, "middle")
        + "</svg>"
    )


def _curve(curve: Curve, pieces: Sequence[Sequence[Point]]) -> str:
    if curve.points:
        marks = "".join(_mark(x, y, curve.style) for piece in pieces for x, y in piece)
        return f'<g class="curve"><title>{escape(curve.label)}</title>{marks}</g>'
    path = "".join(path_data(piece) for piece in pieces)
    x, y = pieces[-1][-1]
    return (
        f'<g class="curve" {_stroke(curve.style)} fill="none" stroke-linejoin="round">'
        f"<title>{escape(curve.label)}</title>"
        f'<path d="{path}" stroke-width="12" stroke-opacity="0" stroke-dasharray="none" pointer-events="stroke"/>'
        f'<path d="{path}" stroke-width="2"/><circle cx="{x:.1f}" cy="{y:.1f}" r="1.5" stroke-width="3" '
        'stroke-dasharray="none"/></g>'
    )


def _mark(x: float, y: float, style: int) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" style="fill:{_colour(style)}"/>'


def _stroke(style: int) -> str:
    dash = DASHES[style % len(DASHES)]
    return f'style="stroke:{_colour(style)}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _colour(style: int) -> str:
    colour = style % len(SERIES_COLOURS)
    return f"var(--series-{colour},{SERIES_COLOURS[colour]})"


def _line(x1: float, y1: float, x2: float, y2: float, look: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" {look}/>'


def _text(x: float, y: float, text: str, anchor: str, look: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor" {look}>{escape(text)}</text>'
