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
from .exhibits import figure_plot
from .pictures import Picture, heat_picture, kind_picture, layer_picture, modelled_pictures, time_picture
from .plan_maps import plan_picture
from .plots import Plot, group_plot, histogram_plots
from .seeds import gather_groups, method_styles
from .svg import standalone
from .tables import modelled_groups, target_of

ZOOM = 2  # pixels of a PNG per unit of its SVG


def write_figures(result: Mapping[str, Any], folder: Path, png: bool = False) -> list[Path]:
    """Write every picture of the report to `folder`, making it, and return the files in the order of the page.

    Each is an SVG that needs no page around it, and a CSV of what it shows; with `png` a PNG too, twice as large.
    Every measure is drawn against bytes and steps, and against seconds where they were measured on real processes.
    """
    draw = png_renderer() if png else None  # asked first: nothing is written if it is missing
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for picture in all_pictures(result):
        svg = standalone(picture.svg)
        base = folder / picture.name
        written += [base.with_suffix(".svg"), base.with_suffix(".csv")]
        base.with_suffix(".svg").write_text(svg, encoding="utf-8")
        with base.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([picture.columns, *picture.rows])
        if draw:
            base.with_suffix(".png").write_bytes(draw(svg))
            written.append(base.with_suffix(".png"))
    return written


def png_renderer() -> Callable[[str], bytes]:
    """Return what turns an SVG text into the bytes of a PNG; MissingExtra says how to get it."""
    try:
        resvg = importlib.import_module("resvg_py")
    except ImportError:
        raise MissingExtra(
            'figures: PNG files need resvg_py, which is not installed; pip install "thinwire[figures]", '
            "or take the SVG files"
        ) from None
    return lambda svg: bytes(resvg.svg_to_bytes(svg_string=svg, zoom=ZOOM, font_family="DejaVu Sans"))


def all_pictures(result: Mapping[str, Any]) -> Iterator[Picture]:
    """Every picture of the page, with names that are good for files: letters, digits and hyphens, no two alike."""
    for at, figure in enumerate(result.get("figures", []), 1):
        yield _drawn(figure_plot(figure, ""), "x", "y", f"figure-{at}-{_short(figure['title'])}", figure["title"])
    groups, target = gather_groups(result.get("runs", [])), target_of(result)
    styles = method_styles(groups)
    for at, (title, members) in enumerate(groups.items(), 1):
        name = f"group-{at}-{_short(title)}"
        plot = group_plot(name, members, styles, target)
        if plot:
            yield from _curves(plot, title)
        yield from (made for make in (time_picture, kind_picture) if (made := make(name, members)))
        for quantity, drawn in histogram_plots(name, members, styles).items():
            yield _drawn(drawn, "x", "y", drawn.name, f"{title}: {quantity}")
        for row, (label, runs) in enumerate(members.items(), 1):
            own = f"{name}-{row}-{_short(label)}"
            yield from (
                made for make in (heat_picture, plan_picture, layer_picture) if (made := make(own, label, runs))
            )
    for at, (title, entries) in enumerate(modelled_groups(result).items(), 1):
        yield from modelled_pictures(f"modelled-{at}-{_short(title)}", entries)


def _curves(plot: Plot, title: str) -> Iterator[Picture]:
    first = next(iter(plot.xs))
    timed = "seconds" in plot.xs and plot.xs["seconds"].title == "seconds"
    for y in plot.ys:
        for x in dict.fromkeys((first, *(["step"] if "step" in plot.xs else []), *(["seconds"] if timed else []))):
            yield _drawn(plot, x, y, f"{plot.name}-{_short(y)}-{_short(x)}", f"{title}: {plot.ys[y].title}")


def _drawn(plot: Plot, x: str, y: str, name: str, title: str) -> Picture:
    return Picture(name, title, plot.svg(x, y, LARGE, key=True), *plot.table(x, y))


def _short(words: str) -> str:
    """The words as a part of a file's name."""
    return slugify(words, most=40, empty="x").rstrip("-")
