from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from thinwire.core import format_bytes
from thinwire_lab.reporting.bars import WIDTH, color_level, pick_evenly, render_bars, render_heat_map
from thinwire_lab.reporting.pictures import (
    draw_error_map,
    draw_kind_bars,
    draw_layer_bars,
    draw_modelled_bars,
    draw_time_bars,
)
from thinwire_lab.reporting.plots import build_histogram_plots, normalize_counts
from thinwire_lab.reporting.scales import format_number

SVG = "{http://www.w3.org/2000/svg}"


def rects(svg: str) -> list[ElementTree.Element]:
    return [e for e in ElementTree.fromstring(svg).iter(f"{SVG}rect") if list(e)]  # those with a title


def run(**more: Any) -> dict[str, Any]:
    return {"group": "g", "label": "a", "composition": "dense()", "final": {}} | more


def test_shares_fill_the_width_and_name_their_parts() -> None:
    svg = render_bars(
        "Bytes", [("a", {"values": 300, "a<b": 100})], ["header", "values", "a<b"], format_bytes, shares=True
    )
    assert sum(float(rect.attrib["width"]) for rect in rects(svg)) == pytest.approx(WIDTH)
    assert [rect[0].text for rect in rects(svg)] == ["values: 300 B (75 %)", "a<b: 100 B (25 %)"]


def test_bars_on_one_scale_are_as_long_as_their_totals() -> None:
    svg = render_bars("Time", [("a", {"x": 1.0, "y": 3.0}), ("b", {"x": 2.0})], ["x", "y"], format_number)
    assert [float(rect.attrib["width"]) for rect in rects(svg)] == [WIDTH / 4, 3 * WIDTH / 4, WIDTH / 2]


@pytest.mark.parametrize("bars", [[], [("nothing", {})], [("zero", {"x": 0.0})]])
def test_bars_of_nothing_are_a_picture_without_bars(bars: list[Any]) -> None:
    assert not rects(render_bars("Empty", bars, ["x"], format_number))


def test_an_error_has_the_colour_of_its_level_and_one_is_not_worse_than_nothing() -> None:
    assert [color_level(value) for value in (0, 0.01, 0.02, 0.5, 1.0, 1.2, 5)] == [0, 0, 1, 5, 7, 8, 9]


def test_of_many_columns_the_first_and_the_last_are_kept() -> None:
    for count in (0, 1, 2, 80, 81, 1000):
        kept = pick_evenly(count)
        assert len(kept) == min(count, 80) and kept == sorted(set(kept))
        assert not count or (kept[0], kept[-1]) == (0, count - 1)


def test_every_finite_cell_of_a_map_is_painted_once() -> None:
    layers = {"one": [0.0, 0.5, None], "two": [1.5, float("nan"), 0.5]}
    svg = ElementTree.fromstring(render_heat_map("Errors", [0, 10, 20], layers))
    paths = [path.attrib["d"] for path in svg.iter(f"{SVG}path")]
    assert sorted(path.count("M") for path in paths) == [1, 1, 2]
    assert {"one", "two", "step", "0", "10", "20"} <= {text.text for text in svg.iter(f"{SVG}text")}


def test_measuring_is_no_part_of_the_time_bars_but_of_the_figures() -> None:
    picture = draw_time_bars("g", {"a": [run(times={"compute": 2.0, "waiting": 1.0, "measure": 9.0})], "b": [run()]})
    assert picture and picture.columns == ["method", "compute_s", "waiting_s", "measure_s"]
    assert picture.rows == [["a", 2, 1, 9]] and "3 s" in picture.svg and "measure" not in picture.svg
    assert draw_time_bars("g", {"a": [run()]}) is None


def test_runs_without_bytes_layers_or_maps_make_no_picture() -> None:
    assert draw_kind_bars("g", {"a": [run(bytes_by_kind={"values": None})]}) is None
    assert draw_layer_bars("g", "a", [run(bytes_by_layer={"only": 5})]) is None
    assert draw_error_map("g", "a", [run(heatmap={"steps": [], "layers": {}})]) is None
    assert build_histogram_plots("g", {"a": [run(histograms={})]}, {"a": 0}) == {}


def test_kinds_beyond_the_colours_are_drawn_together_and_kept_in_the_figures() -> None:
    picture = draw_kind_bars("g", {"a": [run(bytes_by_kind={f"kind {at}": 10 - at for at in range(9)})]})
    assert picture and len(picture.columns) == 10
    drawn = [rect[0].text for rect in rects(picture.svg)]
    assert len(drawn) == 6 and drawn[-1] == "other kinds: 14 B (25.9 %)"


def test_the_largest_layers_are_shown_and_the_others_together() -> None:
    picture = draw_layer_bars("g", "a", [run(bytes_by_layer={f"layer {at}": at for at in range(1, 21)})])
    assert picture and len(picture.rows) == 20 and picture.rows[0] == ["layer 20", 20]
    assert "8 other layers" in picture.svg and "36 B" in picture.svg and ">layer 8<" not in picture.svg


def test_a_map_says_where_its_cells_lie_and_keeps_every_figure() -> None:
    held = {"steps": [0, 10], "layers": {"a": [0.5, None]}, "sizes": {"a": 12}}
    picture = draw_error_map("g", "m", [run(), run(heatmap=held)])
    assert (
        picture
        and picture.columns == ["layer", "numel", "step 0", "step 10"]
        and picture.rows == [["a", 12, 0.5, None]]
    )
    assert picture.cells == {"left": 128, "top": 30, "width": 126, "height": 12}


def test_modelled_times_are_split_only_where_their_parts_add_up() -> None:
    entries = [
        {"group": "g", "label": "a", "link": "1gbit", "step_s": 3.0, "compute_s": 1.0, "transfer_s": 2.0},
        {"group": "g", "label": "b", "link": "1gbit", "step_s": 2.0, "compute_s": 1.0, "transfer_s": 1.8},
        {"group": "g", "label": "a", "link": "10gbit", "step_s": None},
    ]
    fast, other = draw_modelled_bars("m", entries)
    assert [rect[0].text for rect in rects(fast.svg)] == [
        "compute: 1 s (33.3 %)",
        "transfer: 2 s (66.7 %)",
        "step: 2 s (100 %)",
    ]
    assert fast.title.startswith("Modelled") and fast.rows[1] == ["b", "1gbit", 2, 1, 1.8] and not rects(other.svg)


def test_histograms_are_shares_on_a_log_axis_if_their_bins_are_wide_apart() -> None:
    assert normalize_counts([1, 3, None]) == [0.25, 0.75, 0.0] and normalize_counts([0, 0]) == [None, None]
    bins = {"|g|": {"edges": [1e-6, 1e-3, 1.0], "counts": [1, 3]}, "w": {"edges": [0.0, 1.0, 2.0], "counts": [1, 1]}}
    plots = build_histogram_plots("g", {"a": [run(histograms=bins)]}, {"a": 2})
    assert [plots[name].xs["x"].log for name in ("|g|", "w")] == [True, False]
    assert plots["|g|"].lines[0].columns["y"] == [0.25, 0.75, None]
