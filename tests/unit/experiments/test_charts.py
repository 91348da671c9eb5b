from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from thinwire.experiments.charts import (
    DASHES,
    SERIES_COLOURS,
    Curve,
    line_chart,
    path_data,
    segments,
    share_bar,
    swatch,
)
from thinwire.experiments.scales import (
    Axis,
    format_bytes,
    format_number,
    linear_ticks,
    log_ticks,
    padded_range,
    place,
)

SVG = "{http://www.w3.org/2000/svg}"
X = Axis("wire bytes", format_bytes, log=True)
LOG = Axis("loss", format_number, log=True)
LINEAR = Axis("accuracy", format_number, log=False)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def visible_paths(svg: str) -> list[str]:
    paths = ElementTree.fromstring(svg).iter(f"{SVG}path")
    return [path.attrib["d"] for path in paths if path.get("stroke-opacity") != "0"]


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
        low, high = padded_range([value], log)
        assert low < value < high
        assert place(value, low, high, log) == pytest.approx(0.5)


def test_ticks_of_bytes_that_are_nearly_equal_are_not_written_alike() -> None:
    for factor in (1.0, 1.0004, 1.049, 1.051, 1.1):
        for low in (1000, 1_003_000, 9_990_000):
            written = [format_bytes(tick) for tick in log_ticks(*padded_range([low, low * factor], log=True), most=5)]
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
    svg = line_chart([Curve("a <b> & c", 0, [0, 10, 100, 1000], [2, 1, 0.5, 0.1])], X, LOG, mark=0.2)
    assert {"wire bytes", "loss", "10 B", "100 B", "1 kB"} <= set(texts(svg))
    titles = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    assert titles == ["target 0.2", "a <b> & c"]


def test_a_point_at_zero_bytes_is_dropped() -> None:
    curve = Curve("a", 0, [0, 10, 100], [3.0, 2.0, 1.0])
    assert segments(curve, x_log=True, y_log=True) == [[(10, 2.0), (100, 1.0)]]


def test_what_is_not_finite_leaves_a_gap() -> None:
    ys = [1.0, None, 3.0, math.nan, math.inf, 4.0, 5.0]
    curve = Curve("a", 0, [1, 2, 3, 4, 5, 6, 7], ys)
    assert segments(curve, x_log=True, y_log=False) == [[(1, 1.0)], [(3, 3.0)], [(6, 4.0), (7, 5.0)]]
    (path,) = visible_paths(line_chart([curve], X, LINEAR))
    assert path.count("M") == 3


def test_zero_has_no_place_on_a_log_axis_but_one_on_a_linear_axis() -> None:
    curve = Curve("a", 0, [1, 2, 3], [1.0, 0.0, 1.0])
    assert len(segments(curve, x_log=True, y_log=True)) == 2
    assert len(segments(curve, x_log=True, y_log=False)) == 1


@pytest.mark.parametrize("ys", [[], [None, None], [math.nan, 0.0]])
def test_a_chart_without_any_drawable_value_says_so(ys: list[float | None]) -> None:
    assert "no finite values" in texts(line_chart([Curve("a", 0, [1, 2], ys)], X, LOG))
    assert "no finite values" in texts(line_chart([], X, LOG))


@pytest.mark.parametrize("axis", [LOG, LINEAR])
def test_a_chart_of_one_point_is_well_formed(axis: Axis) -> None:
    (path,) = visible_paths(line_chart([Curve("a", 3, [50], [0.5])], X, axis))
    assert "nan" not in path


def test_a_diverging_curve_does_not_squeeze_the_others() -> None:
    calm = Curve("calm", 0, [0, 10, 100], [1.0, 0.5, 0.1])
    wild = Curve("wild", 1, [0, 10, 100], [1.0, 1e10, 1e30])
    assert "0.1" in texts(line_chart([calm, wild], X, LOG))
    assert not any("10³⁰" in text or "10²⁰" in text for text in texts(line_chart([calm, wild], X, LOG)))


def test_points_that_fall_together_are_drawn_once() -> None:
    assert path_data([(0.0, 0.0), (0.1, 0.1), (0.2, 0.3), (5.0, 0.0)]) == "M0.0,0.0L5.0,0.0"


def test_forty_styles_differ_in_colour_or_dash() -> None:
    assert len({swatch(style) for style in range(len(SERIES_COLOURS) * len(DASHES))}) == 40
    ElementTree.fromstring(swatch(41))


def test_a_share_bar_fills_its_width_and_names_its_parts() -> None:
    bar = ElementTree.fromstring(share_bar({"values": 300, "a<b": 100}, ["header", "values", "a<b"]))
    assert sum(float(rect.attrib["width"]) for rect in bar.iter(f"{SVG}rect")) == pytest.approx(100)
    assert [title.text for title in bar.iter(f"{SVG}title")] == ["values: 300 B (75 %)", "a<b: 100 B (25 %)"]


def test_a_share_bar_of_nothing_is_empty() -> None:
    assert not list(ElementTree.fromstring(share_bar({}, [])))
