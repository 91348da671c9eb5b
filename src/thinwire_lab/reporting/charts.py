"""Line charts as SVG strings; no scripts, no fonts, no network.

script.js draws the same chart from the same data, with the axes the reader chooses; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from .scales import Axis, is_drawable, linear_ticks, log_ticks, pad_range, to_fraction
from .svg import css_color, estimate_width, stroke_style, svg_circle, svg_document, svg_legend, svg_line, svg_text

LEFT, RIGHT, TOP, BOTTOM = 56, 24, 30, 48

Point = tuple[float, float]


@dataclass(frozen=True)
class Size:
    """Width and height, close to the pixels at which a page shows the chart, so that text keeps its size."""

    width: int
    height: int

    @property
    def plot(self) -> tuple[int, int]:
        """Width and height inside the axes."""
        return self.width - LEFT - RIGHT, self.height - TOP - BOTTOM


SMALL, LARGE = Size(380, 270), Size(590, 400)


@dataclass(frozen=True)
class Curve:
    """One line of a chart; `style` chooses its color and dash, None is a value that was not finite.

    `points` draws marks without a line. `steps` holds each y until the next x, as histograms do. `spread` is the
    standard deviation of each y, drawn as a band.
    """

    label: str
    style: int
    xs: Sequence[float | None]
    ys: Sequence[float | None]
    points: bool = False
    steps: bool = False
    spread: Sequence[float | None] = ()


def split_curve(curve: Curve, x_log: bool, y_log: bool) -> list[list[Point]]:
    """Split a curve at points that cannot be drawn. On a log axis a point at 0 is dropped, not moved to the edge."""
    pieces: list[list[Point]] = [[]]
    xs, ys = to_stairs(curve.xs, curve.ys) if curve.steps else (curve.xs, curve.ys)
    for x, y in zip(xs, ys, strict=False):
        if x is not None and y is not None and is_drawable(x, x_log) and is_drawable(y, y_log):
            pieces[-1].append((x, y))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def to_stairs(xs: Sequence[float | None], ys: Sequence[float | None]) -> tuple[list[float | None], list[float | None]]:
    """Return the corners of a line that keeps y from each x to the next; the last x only ends the line."""
    return [x for pair in pairwise(xs) for x in pair], [y for y in ys[: len(xs) - 1] for _ in "12"]


def split_band(curve: Curve, x_log: bool, y_log: bool) -> list[list[tuple[float, float, float]]]:
    """Return (x, low, high) in pieces, wherever there is a point and a spread; `low` may be below a log axis."""
    pieces: list[list[tuple[float, float, float]]] = [[]]
    for x, y, std in zip(curve.xs, curve.ys, curve.spread, strict=False):
        if x is None or y is None or std is None or not (is_drawable(x, x_log) and is_drawable(y, y_log)):
            pieces.append([])
        else:
            pieces[-1].append((x, y - std, y + std))
    return [piece for piece in pieces if piece]


def write_path(points: Sequence[Point]) -> str:
    """Return the `d` of a path through points in pixels, without points within half a pixel of the one before."""
    kept = [points[0]]
    for point in points[1:]:
        if max(abs(point[0] - kept[-1][0]), abs(point[1] - kept[-1][1])) >= 0.5:
            kept.append(point)
    if len(kept) == 1:
        kept.append((kept[0][0] + 0.1, kept[0][1]))  # a line of no length is not painted
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in kept)


def find_ranges(
    curves: Sequence[Curve], x_axis: Axis, y_axis: Axis, capped: bool
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Return the ranges of both axes, None if nothing can be drawn.

    A capped log y axis ends at 100 times the highest start, so that a diverging curve does not compress the others.
    Bands widen a linear axis only; on a log axis a band that reaches 0 would take all of it.
    """
    points = [point for curve in curves for piece in split_curve(curve, x_axis.log, y_axis.log) for point in piece]
    if not points:
        return None
    heights = [y for _, y in points]
    if y_axis.log and capped:
        starts = (next((y for y in curve.ys if y is not None and is_drawable(y, True)), 0.0) for curve in curves)
        ceiling = 100 * max(starts)
        heights = [y for y in heights if y <= ceiling] or heights
    if not y_axis.log:
        bands = [edges for curve in curves for piece in split_band(curve, x_axis.log, False) for edges in piece]
        heights += [y for _, low, high in bands for y in (low, high)]
    return pad_range([x for x, _ in points], x_axis.log), pad_range(heights, y_axis.log)


def render_line_chart(
    curves: Sequence[Curve],
    x_axis: Axis,
    y_axis: Axis,
    target: float | None = None,
    size: Size = SMALL,
    capped: bool = True,
    key: bool = False,
) -> str:
    """Return the curves as one SVG; `target` is a level drawn across, if it is in view; `key` adds a legend below."""
    width, height = size.plot
    found = find_ranges(curves, x_axis, y_axis, capped)
    if found is None:
        nothing = svg_text(width / 2 + LEFT, height / 2 + TOP, "no finite values", "middle")
        return _frame(x_axis, y_axis, nothing, size, curves if key else ())
    x_range, y_range = found

    def across(x: float) -> float:
        return width * to_fraction(x, *x_range, x_axis.log)

    def down(y: float) -> float:
        if y_axis.log and y <= 0:
            return float(height)  # the lower edge of a band, clipped
        return height * (1 - to_fraction(y, *y_range, y_axis.log))

    body, written = "", -1.0
    for tick in (log_ticks if x_axis.log else linear_ticks)(*x_range, max_ticks=5):
        x, words = LEFT + across(tick), x_axis.write(tick)
        body += svg_line(x, TOP, x, TOP + height, 'stroke-opacity="0.13"')
        if x - estimate_width(words) / 2 > written:
            body += svg_text(x, TOP + height + 16, words, "middle")
            written = x + estimate_width(words) / 2
    for tick in (log_ticks if y_axis.log else linear_ticks)(*y_range):
        y = TOP + down(tick)
        body += svg_line(LEFT, y, LEFT + width, y, 'stroke-opacity="0.13"')
        body += svg_text(LEFT - 6, y + 4, y_axis.write(tick), "end")
    if target is not None and is_drawable(target, y_axis.log) and y_range[0] <= target <= y_range[1]:
        y = TOP + down(target)
        body += f"<g><title>target {escape(y_axis.write(target))}</title>"
        body += svg_line(LEFT, y, LEFT + width, y, 'stroke-opacity="0.6" stroke-dasharray="1 3"') + "</g>"
    lines = ""
    for curve in curves:
        drawn = [[(across(x), down(y)) for x, y in piece] for piece in split_curve(curve, x_axis.log, y_axis.log)]
        edges = [
            [(across(x), down(high)) for x, _, high in piece] + [(across(x), down(low)) for x, low, _ in piece[::-1]]
            for piece in split_band(curve, x_axis.log, y_axis.log)
        ]
        # an empty group stands for a curve without points: the legend refers to curves by position
        lines += _curve(curve, drawn, edges) if drawn else '<g class="curve"/>'
    # An inner svg clips what leaves the plot without needing an id that must be unique on the page.
    plot = f'<svg x="{LEFT}" y="{TOP}" width="{width}" height="{height}">{lines}</svg>'
    return _frame(x_axis, y_axis, body + plot, size, curves if key else ())


def _frame(x_axis: Axis, y_axis: Axis, body: str, size: Size, named: Sequence[Curve]) -> str:
    width, height = size.plot
    key, below = svg_legend([(c.label, c.style, c.points) for c in named], LEFT, size.height, width)
    frame = f'<rect x="{LEFT}" y="{TOP}" width="{width}" height="{height}" fill="none" '
    return svg_document(
        f"{y_axis.heading} against {x_axis.heading}",
        size.width,
        size.height + below,
        f'{frame}stroke="currentColor" stroke-opacity="0.35"/>{body}'
        + svg_text(LEFT, TOP - 12, y_axis.heading, "start", 'font-size="13" font-weight="600"')
        + svg_text(LEFT + width / 2, size.height - 10, x_axis.heading, "middle")
        + key,
    )


def _curve(curve: Curve, pieces: Sequence[Sequence[Point]], edges: Sequence[Sequence[Point]]) -> str:
    title = f"<title>{escape(curve.label)}</title>"
    if curve.points:
        marks = "".join(svg_circle(x, y, curve.style) for piece in pieces for x, y in piece)
        return f'<g class="curve">{title}{marks}</g>'
    path = "".join(write_path(piece) for piece in pieces)
    x, y = pieces[-1][-1]
    area = "".join(write_path(piece) + "Z" for piece in edges)
    shade = f'<path class="band" d="{area}" style="fill:{css_color("series", curve.style)}" fill-opacity="0.16" '
    return (
        f'<g class="curve" {stroke_style(curve.style)} fill="none" stroke-linejoin="round">{title}'
        + (f'{shade}stroke="none" stroke-opacity="0"/>' if area else "")
        + f'<path class="line" d="{path}" stroke-width="2"/>'
        + f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.5" stroke-width="3" stroke-dasharray="none"/></g>'
    )
