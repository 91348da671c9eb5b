from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from thinwire_lab.reporting.charts import Curve, render_line_chart, split_curve, write_path
from thinwire_lab.reporting.scales import (
    Axis,
    choose_unit,
    format_bytes,
    format_number,
    format_seconds,
    linear_ticks,
    log_ticks,
    pad_range,
    to_fraction,
    to_json_number,
)
from thinwire_lab.reporting.svg import (
    DASHES,
    SERIES_COLORS,
    estimate_width,
    shorten,
    shorten_layer,
    svg_swatch,
    to_standalone,
)

SVG = "{http://www.w3.org/2000/svg}"
X = Axis("wire bytes", "bytes", log=True)
LOG = Axis("loss", "number", log=True)
LINEAR = Axis("accuracy", "number", log=False)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def visible_paths(svg: str) -> list[str]:
    paths = ElementTree.fromstring(svg).iter(f"{SVG}path")
    return [path.attrib["d"] for path in paths if path.get("class") == "line"]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.9, 1200, [1, 10, 100, 1000]),
        (1, 10, [1, 2, 5, 10]),
        (0.09, 2.4, [0.1, 0.2, 0.5, 1, 2]),
        (1.1, 1.9, [1.2, 1.4, 1.6, 1.8]),
        (3.01e6, 3.09e6, [3.02e6, 3.04e6, 3.06e6, 3.08e6]),
        (1e-12, 1, [1e-12, 1e-9, 1e-6, 1e-3, 1]),
        (7, 7, [7]),
        (1000, 1000, [1000]),
    ],
)
def test_log_ticks_are_round_numbers_within_the_range(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high) == pytest.approx(ticks)


def test_log_ticks_are_always_two_or_more_and_never_too_many() -> None:
    for exponent in range(-30, 30):
        for span in (1.01, 1.5, 2.0, 3.3, 9.0, 11.0, 99.0, 1e3, 1e7, 1e25):
            low, high = 1.7 * 10.0**exponent, 1.7 * 10.0**exponent * span
            for most in (5, 6):
                ticks = log_ticks(low, high, most)
                assert 2 <= len(ticks) <= most
                assert ticks == sorted(set(ticks))
                assert low * (1 - 1e-9) <= ticks[0] and ticks[-1] <= high * (1 + 1e-9)


def test_log_ticks_refuse_zero_by_name() -> None:
    with pytest.raises(ValueError, match="log_ticks: needs 0 < low <= high, got low=0"):
        log_ticks(0, 1)


def test_linear_ticks_are_round_numbers_within_the_range() -> None:
    assert linear_ticks(0.08, 1.02) == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert linear_ticks(-1, 1) == [-1, -0.5, 0, 0.5, 1]
    assert linear_ticks(3, 3) == [3]


def test_a_single_value_still_has_a_range_around_it() -> None:
    for value, log in ((5.0, True), (5.0, False), (0.0, False)):
        low, high = pad_range([value], log)
        assert low < value < high
        assert to_fraction(value, low, high, log) == pytest.approx(0.5)


def test_ticks_of_bytes_that_are_nearly_equal_are_not_written_alike() -> None:
    for factor in (1.0, 1.0004, 1.049, 1.051, 1.1):
        for low in (1000, 1_003_000, 9_990_000):
            written = [format_bytes(tick) for tick in log_ticks(*pad_range([low, low * factor], log=True), max_ticks=5)]
            assert len(set(written)) == len(written) >= 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (999.9, "1 kB"), (1000, "1 kB"), (12345, "12.3 kB"), (1e6, "1 MB"), (5e16, "50 PB")],
)
def test_bytes_are_written_in_powers_of_a_thousand(value: float, text: str) -> None:
    assert format_bytes(value) == text


def test_numbers_are_written_short_and_the_non_finite_as_a_dash() -> None:
    assert [format_number(value) for value in (0.1, 1e-5, 2.5e-7, -3e12)] == ["0.1", "10⁻⁵", "2.5·10⁻⁷", "-3·10¹²"]
    assert format_number(0.06, pad=True) == "0.06000"
    assert [format_number(value) for value in (None, math.nan, math.inf)] == ["–"] * 3
    assert [format_bytes(value) for value in (None, math.nan, math.inf)] == ["–"] * 3


def test_a_chart_is_well_formed_and_names_its_axes_and_curves() -> None:
    svg = render_line_chart([Curve("a <b> & c", 0, [0, 10, 100, 1000], [2, 1, 0.5, 0.1])], X, LOG, target=0.2)
    assert {"wire bytes (log scale)", "loss (log scale)", "10 B", "100 B", "1 kB"} <= set(texts(svg))
    titles = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    assert titles == ["target 0.2", "a <b> & c"]


def test_a_point_at_zero_bytes_is_dropped() -> None:
    curve = Curve("a", 0, [0, 10, 100], [3.0, 2.0, 1.0])
    assert split_curve(curve, x_log=True, y_log=True) == [[(10, 2.0), (100, 1.0)]]


def test_what_is_not_finite_leaves_a_gap() -> None:
    ys = [1.0, None, 3.0, math.nan, math.inf, 4.0, 5.0]
    curve = Curve("a", 0, [1, 2, 3, 4, 5, 6, 7], ys)
    assert split_curve(curve, x_log=True, y_log=False) == [[(1, 1.0)], [(3, 3.0)], [(6, 4.0), (7, 5.0)]]
    (path,) = visible_paths(render_line_chart([curve], X, LINEAR))
    assert path.count("M") == 3


def test_zero_has_no_place_on_a_log_axis_but_one_on_a_linear_axis() -> None:
    curve = Curve("a", 0, [1, 2, 3], [1.0, 0.0, 1.0])
    assert len(split_curve(curve, x_log=True, y_log=True)) == 2
    assert len(split_curve(curve, x_log=True, y_log=False)) == 1


@pytest.mark.parametrize("ys", [[], [None, None], [math.nan, 0.0]])
def test_a_chart_without_any_drawable_value_says_so(ys: list[float | None]) -> None:
    assert "no finite values" in texts(render_line_chart([Curve("a", 0, [1, 2], ys)], X, LOG))
    assert "no finite values" in texts(render_line_chart([], X, LOG))


@pytest.mark.parametrize("axis", [LOG, LINEAR])
def test_a_chart_of_one_point_is_well_formed(axis: Axis) -> None:
    (path,) = visible_paths(render_line_chart([Curve("a", 3, [50], [0.5])], X, axis))
    assert "nan" not in path


def test_a_diverging_curve_does_not_squeeze_the_others() -> None:
    calm = Curve("calm", 0, [0, 10, 100], [1.0, 0.5, 0.1])
    wild = Curve("wild", 1, [0, 10, 100], [1.0, 1e10, 1e30])
    assert "0.1" in texts(render_line_chart([calm, wild], X, LOG))
    assert not any("10³⁰" in text or "10²⁰" in text for text in texts(render_line_chart([calm, wild], X, LOG)))


def test_points_that_fall_together_are_drawn_once() -> None:
    assert write_path([(0.0, 0.0), (0.1, 0.1), (0.2, 0.3), (5.0, 0.0)]) == "M0.0,0.0L5.0,0.0"


def test_forty_styles_differ_in_colour_or_dash() -> None:
    assert len({svg_swatch(style) for style in range(len(SERIES_COLORS) * len(DASHES))}) == 40
    ElementTree.fromstring(svg_swatch(41))


def test_seconds_are_written_in_the_unit_that_suits_them() -> None:
    written = [format_seconds(value) for value in (0, 2.5e-5, 0.0123, 0.9999, 3.14159, 999.9, 12345, 2e24, None)]
    assert written == ["0 s", "25 µs", "12.3 ms", "1 s", "3.14 s", "1,000 s", "12,300 s", "2·10²⁴ s", "–"]


def test_a_factor_is_what_the_unit_in_use_stands_for() -> None:
    assert choose_unit("bytes", 12_345) == (1000, " kB")
    assert choose_unit("seconds", 0.02) == (1e-3, " ms")
    assert choose_unit("percent", 0.5) == (0.01, " %")
    assert choose_unit("number", 1e9) == (1, "")


def test_whole_numbers_stay_whole_in_the_page() -> None:
    assert [to_json_number(v) for v in (3.0, 123456789012.0, 1 / 3, None, math.inf)] == [
        3,
        123456789012,
        0.33333333,
        None,
        None,
    ]


def test_an_axis_of_no_known_unit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Axis: no unit 'parsec'; there are bytes, number"):
        Axis("x", "parsec", log=False)


def test_a_histogram_keeps_each_value_until_the_next_edge() -> None:
    curve = Curve("a", 0, [0, 1, 2, 3], [5.0, 0.0, 7.0, None], steps=True)
    assert split_curve(curve, False, False) == [[(0, 5.0), (1, 5.0), (1, 0.0), (2, 0.0), (2, 7.0), (3, 7.0)]]
    assert split_curve(curve, False, True) == [[(0, 5.0), (1, 5.0)], [(2, 7.0), (3, 7.0)]]


def bands(svg: str) -> list[str]:
    return [path.attrib["d"] for path in ElementTree.fromstring(svg).iter(f"{SVG}path") if path.get("class") == "band"]


def test_a_band_is_drawn_where_there_is_a_spread_and_never_stretches_a_log_axis() -> None:
    curve = Curve("a", 1, [1, 2, 3], [1.0, 1.0, 2.0], spread=[0.1, None, 5.0])
    (path,) = bands(render_line_chart([curve], X, LINEAR))
    assert path.count("Z") == 2
    without = Curve("a", 1, curve.xs, curve.ys)
    assert texts(render_line_chart([curve], X, LOG)) == texts(render_line_chart([without], X, LOG))
    assert texts(render_line_chart([curve], X, LINEAR)) != texts(render_line_chart([without], X, LINEAR))
    assert not bands(render_line_chart([without], X, LOG))


def test_a_chart_with_a_key_names_every_curve_and_grows_for_it() -> None:
    curves = [Curve(f"method number {at}", at, [1, 2], [1.0, 2.0], points=at == 3) for at in range(9)]
    plain, keyed = (ElementTree.fromstring(render_line_chart(curves, X, LOG, key=key)) for key in (False, True))
    assert {curve.label for curve in curves} <= {e.text for e in keyed.iter(f"{SVG}text")}
    assert float(keyed.attrib["viewBox"].split()[3]) >= float(plain.attrib["viewBox"].split()[3]) + 3 * 18


def test_a_standalone_picture_has_colours_ground_and_size_of_its_own() -> None:
    alone = to_standalone(render_line_chart([Curve("a", 1, [1, 2], [1.0, 2.0])], X, LOG))
    root = ElementTree.fromstring(alone)
    assert root.attrib["width"] == "400" and "sans-serif" in root.attrib["font-family"]
    assert "var(" not in alone and "currentColor" not in alone and "#0072b2" in alone
    with pytest.raises(ValueError, match="to_standalone: needs a picture of this module, got 'hello'"):
        to_standalone("hello")


def test_long_names_fit_and_names_of_layers_still_differ() -> None:
    names = [f"transformer.blocks.{at}.{part}.weight" for at in (0, 11) for part in ("attention.project", "norm")]
    assert [shorten(names[0], 1000), shorten_layer(names[0], 1000)] == [names[0]] * 2
    assert shorten(names[0], 100).startswith("transformer") and shorten(names[0], 100).endswith("…")
    for room in (60, 100, 130, 160):
        short = [shorten_layer(name, room) for name in names]
        assert all(estimate_width(one) <= room for one in short)
        assert len(set(short)) == 4 or room < 100
    assert shorten_layer("t.b.0.attention.weight", 110) == "t.b.0.a.weight"
