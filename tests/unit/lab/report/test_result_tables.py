from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from thinwire_lab.reporting import render_report
from thinwire_lab.reporting.charts import SMALL, Curve, render_line_chart
from thinwire_lab.reporting.result_tables import build_plot, build_table, find_number_columns, format_cell
from thinwire_lab.reporting.scales import Axis
from thinwire_lab.reporting.svg import svg_swatch
from thinwire_lab.reporting.terminal import print_result

SVG = "{http://www.w3.org/2000/svg}"
TABLE: dict[str, Any] = {
    "title": "Claims <b>",
    "note": "as measured",
    "columns": ["claim", "bits", "share"],
    "rows": [["Top-k wins", 111_178, 0.25], ["[red]unknown", None, float("nan")]],
}
FIGURE: dict[str, Any] = {
    "title": "Bytes by ranks",
    "note": "",
    "x": {"title": "ranks (log scale)", "log": True, "unit": "number"},
    "y": {"title": "sent", "log": True, "unit": "bytes"},
    "curves": [
        {"label": "by formula", "x": [1, 2, 4], "y": [10, 20, 1e6]},
        {"label": "nothing", "x": [], "y": []},
        {"label": "metered", "x": [1, 4], "y": [11, None], "points": True, "style": 0},
    ],
}


def result(**exhibits: Any) -> dict[str, Any]:
    return {"name": "bare", "command": "thinwire run bare", "checks": []} | exhibits


def test_cells_are_written_for_people():
    assert [format_cell(v) for v in (111_178, 0.25, 1e-6, None, float("nan"), "Top-k", True)] == [
        "111,178", "0.25", "10⁻⁶", "–", "–", "Top-k", "yes",
    ]  # fmt: skip


def test_columns_of_numbers_are_set_to_the_right_even_with_gaps():
    assert find_number_columns(TABLE) == [False, True, True]
    assert find_number_columns(TABLE | {"rows": []}) == [True, True, True]
    last = build_table(TABLE).rows[1]
    assert [(cell.text, cell.side) for cell in last] == [("[red]unknown", "words"), ("–", "number"), ("–", "number")]
    assert [cell.order for cell in last] == ["[red]unknown", None, None]


def test_a_result_of_tables_and_figures_alone_makes_a_page():
    page = render_report(result(tables=[TABLE], figures=[FIGURE]))
    assert (
        "Claims &lt;b&gt;" in page
        and "as measured" in page
        and '<td class="number" data-name="bits" data-order="111178.0">111,178' in page
    )
    assert "Bytes are those rank 0 sent" not in page
    (chart,) = re.findall(r'<svg [^>]*class="chart".*?</svg>.*?</svg>', page, re.DOTALL)
    ElementTree.fromstring(chart)


def test_points_are_marks_without_a_line_in_the_style_they_ask_for():
    drawn = build_plot(FIGURE, "f").svg("x", "y")
    curves = [g for g in ElementTree.fromstring(drawn).iter(f"{SVG}g") if g.get("class") == "curve"]
    line, nothing, marks = curves
    assert len(list(line.iter(f"{SVG}path"))) == 1 and not list(nothing)
    assert len(list(marks.iter(f"{SVG}circle"))) == 1 and not list(marks.iter(f"{SVG}path"))
    page = render_report(result(figures=[FIGURE]))
    assert page.count(svg_swatch(0, points=True)) == 1
    assert re.findall(r"</svg><span>([^<]*)</span>", page) == ["by formula", "nothing", "metered"]


def test_a_title_says_log_scale_once():
    texts = [e.text for e in ElementTree.fromstring(build_plot(FIGURE, "f").svg("x", "y")).iter(f"{SVG}text")]
    assert "ranks (log scale)" in texts and "sent (log scale)" in texts


def test_a_figure_shows_all_of_a_growing_curve_and_a_run_chart_cuts_a_diverging_one():
    growing = Curve("a", 0, [1, 2, 3], [1.0, 10.0, 1e8])
    x, y = Axis("x", "number", log=False), Axis("y", "number", log=True)
    assert "10⁸" in render_line_chart([growing], x, y, size=SMALL, capped=False)
    assert "10⁸" not in render_line_chart([growing], x, y)


def test_layers_that_travelled_dense_are_named_under_their_method():
    run = {"group": "g", "label": "m", "composition": "c", "curve": {}, "final": {}, "dense_layers": ["bias", "norm"]}
    assert "sent dense, because factors would be longer: bias, norm" in render_report(result(runs=[run]))


def test_tables_are_printed_as_they_are_written(capsys: pytest.CaptureFixture[str]):
    print_result(result(tables=[TABLE]))
    printed = capsys.readouterr().out
    assert "Claims <b>" in printed and "[red]unknown" in printed and "111,178" in printed
