"""The pictures of a report as files: SVG and CSV always, PNG with the extra `figures`."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from thinwire.core import MissingExtra

from ..configuration.slugs import slugify
from .charts import LARGE
from .pictures import Picture, draw_error_map, draw_kind_bars, draw_layer_bars, draw_modelled_bars, draw_time_bars
from .plan_map import draw_plan_map
from .plots import Plot, build_group_plot, build_histogram_plots
from .result_tables import build_plot
from .seeds import assign_styles, group_runs
from .svg import to_standalone
from .tables import group_modelled, read_target

ZOOM = 2  # pixels of a PNG per unit of its SVG


def write_figures(result: Mapping[str, Any], folder: Path, png: bool = False) -> list[Path]:
    """Write every picture of the report to `folder`, making it, and return the files in the order of the page.

    Each is an SVG that needs no page around it, and a CSV of what it shows; with `png` a PNG too, twice as large.
    Every measure is drawn against bytes and steps, and against seconds where they were measured on real processes.
    """
    draw = load_png_renderer() if png else None  # before anything is written, in case it is missing
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for picture in draw_pictures(result):
        svg = to_standalone(picture.svg)
        base = folder / picture.name
        written += [base.with_suffix(".svg"), base.with_suffix(".csv")]
        base.with_suffix(".svg").write_text(svg, encoding="utf-8")
        with base.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([picture.columns, *picture.rows])
        if draw:
            base.with_suffix(".png").write_bytes(draw(svg))
            written.append(base.with_suffix(".png"))
    return written


def load_png_renderer() -> Callable[[str], bytes]:
    """Return a function from an SVG text to the bytes of a PNG. Raises MissingExtra without the extra `figures`."""
    try:
        resvg = importlib.import_module("resvg_py")
    except ImportError:
        raise MissingExtra(
            'figures: PNG files need resvg_py, which is not installed; pip install "thinwire[figures]", '
            "or use the SVG files"
        ) from None
    return lambda svg: bytes(resvg.svg_to_bytes(svg_string=svg, zoom=ZOOM, font_family="DejaVu Sans"))


def draw_pictures(result: Mapping[str, Any]) -> Iterator[Picture]:
    """Yield every picture of the page; names are unique and fit for files (letters, digits, hyphens)."""
    for at, figure in enumerate(result.get("figures", []), 1):
        yield _make_picture(
            build_plot(figure, ""), "x", "y", f"figure-{at}-{_file_name(figure['title'])}", figure["title"]
        )
    groups, target = group_runs(result.get("runs", [])), read_target(result)
    styles = assign_styles(groups)
    for at, (title, members) in enumerate(groups.items(), 1):
        name = f"group-{at}-{_file_name(title)}"
        plot = build_group_plot(name, members, styles, target)
        if plot:
            yield from _curves(plot, title)
        yield from (picture for draw in (draw_time_bars, draw_kind_bars) if (picture := draw(name, members)))
        for quantity, drawn in build_histogram_plots(name, members, styles).items():
            yield _make_picture(drawn, "x", "y", drawn.name, f"{title}: {quantity}")
        for row, (label, runs) in enumerate(members.items(), 1):
            own = f"{name}-{row}-{_file_name(label)}"
            yield from (
                picture
                for draw in (draw_error_map, draw_plan_map, draw_layer_bars)
                if (picture := draw(own, label, runs))
            )
    for at, (title, entries) in enumerate(group_modelled(result).items(), 1):
        yield from draw_modelled_bars(f"modelled-{at}-{_file_name(title)}", entries)


def _curves(plot: Plot, title: str) -> Iterator[Picture]:
    first = next(iter(plot.xs))
    timed = "seconds" in plot.xs and plot.xs["seconds"].title == "seconds"
    for y in plot.ys:
        for x in dict.fromkeys((first, *(["step"] if "step" in plot.xs else []), *(["seconds"] if timed else []))):
            yield _make_picture(
                plot, x, y, f"{plot.name}-{_file_name(y)}-{_file_name(x)}", f"{title}: {plot.ys[y].title}"
            )


def _make_picture(plot: Plot, x: str, y: str, name: str, title: str) -> Picture:
    return Picture(name, title, plot.svg(x, y, LARGE, key=True), *plot.table(x, y))


def _file_name(text: str) -> str:
    """Return the text as a part of a file name."""
    return slugify(text, max_length=40, empty="x").rstrip("-")
