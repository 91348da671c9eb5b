"""The report as a reader meets it: in headless Chromium, wide and narrow, light and dark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from helpers.chromium import Chromium, Page, find_chromium
from helpers.sample_result import made_result
from thinwire.core import format_bytes
from thinwire_lab.reporting import write_report
from thinwire_lab.reporting.charts import Size
from thinwire_lab.reporting.plots import MEASURES, Plot, PlotLine, build_group_plot
from thinwire_lab.reporting.scales import Axis, format_number, format_seconds
from thinwire_lab.reporting.seeds import assign_styles, group_runs
from thinwire_lab.reporting.tables import read_target

PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no chromium, chromium-browser or google-chrome here; THINWIRE_CHROMIUM may name one"
)
OPEN_ALL = "document.querySelectorAll('details').forEach((d) => { d.open = true; })"
FIRST = "document.querySelector('figure.plot[data-plot=group-0]')"

# Texts of one picture that lie on one another, and texts that leave their picture.
CLASHES = """[...document.querySelectorAll('svg.chart')].flatMap((svg) => {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].map((t) => ({words: t.textContent, box: t.getBoundingClientRect()}));
  const found = texts.filter(({box}) => box.left < frame.left - 1 || box.right > frame.right + 1 ||
    box.top < frame.top - 1 || box.bottom > frame.bottom + 1).map(({words}) => 'leaves: ' + words);
  texts.forEach(({words, box}, at) => texts.slice(at + 1).forEach((other) => {
    const across = Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left);
    const down = Math.min(box.bottom, other.box.bottom) - Math.max(box.top, other.box.top);
    if (across > 0.5 && down > 2) found.push(`${words} | ${other.words}`);
  }));
  return found;
})"""
# What sticks out of the page at the right; what scrolls by itself may.
TOO_WIDE = """[...document.querySelectorAll('body *')].filter((e) =>
  !e.closest('#tip') && !e.closest('.wide') && e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
  .map((e) => e.tagName + '.' + e.getAttribute('class') + ': ' + e.textContent.slice(0, 40))"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert PROGRAM
    started = Chromium(PROGRAM, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(made_result(), path)
    return path


@pytest.fixture
def page(browser: Chromium, report: Path) -> Iterator[Page]:
    opened = Page(browser, report)
    yield opened
    assert opened.complaints() == []
    opened.close()


def bring(page: Page, element: str) -> None:
    """Scroll there and wait until the page knows: scrolling takes tips away."""
    page.run(f"{element}.scrollIntoView({{block: 'center'}})")
    page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def press(page: Page, element: str) -> None:
    """Click in the middle of what the expression gives."""
    bring(page, element)
    box = page.run(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({element}.getBoundingClientRect())")
    page.click(*box)


def lines(page: Page, figure: str = FIRST) -> list[str]:
    found: list[str] = page.run(f"[...{figure}.querySelectorAll('path.line')].map((path) => path.getAttribute('d'))")
    return found


def choose(page: Page, axis: str, key: str) -> None:
    select = f"{FIRST}.querySelector('select[data-axis={axis}]')"
    page.run(f"{select}.value = '{key}'; {select}.dispatchEvent(new Event('change'))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_overlaps_or_sticks_out(browser: Chromium, report: Path, width: int, scheme: str) -> None:
    page = Page(browser, report, width, scheme)
    page.run(OPEN_ALL)
    page.wait_for("[...document.querySelectorAll('.plot svg.chart')].every((s) => s.hasAttribute('width'))")
    assert page.run(CLASHES) == []
    assert page.run(TOO_WIDE) == []
    assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    ground = page.run("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", ground))) < 60) == (scheme == "dark")
    smallest = page.run(
        "Math.min(...[...document.querySelectorAll('svg.chart text')].map((t) => t.getBoundingClientRect().height))"
    )
    assert smallest >= 9  # can be read
    assert page.complaints() == []
    page.close()


def test_the_checks_of_this_file_see_what_they_look_for(page: Page) -> None:
    page.run(
        f"{FIRST}.querySelector('text').setAttribute('x', 300); {FIRST}.querySelectorAll('text')[1].setAttribute('x', 310)"
    )
    page.run("document.querySelector('h2').style.width = '2000px'")
    assert len(page.run(CLASHES)) == 1 and len(page.run(TOO_WIDE)) == 1
    page.run(f"{FIRST}.querySelector('text').setAttribute('x', -30)")
    assert any(words.startswith("leaves") for words in page.run(CLASHES))


def test_every_plot_is_drawn_with_finite_coordinates(page: Page) -> None:
    page.run(OPEN_ALL)
    page.wait_for("[...document.querySelectorAll('.plot svg.chart')].every((s) => s.hasAttribute('width'))")
    drawn = page.run(
        "[...document.querySelectorAll('figure svg.chart')].map((s) => [...s.querySelectorAll('path')].map((p) => p.getAttribute('d')))"
    )
    assert len(drawn) == 1 + 2 * (2 + 1 + 2 + 5 * 2) + 1 + 2 * 3
    coordinates = [word for paths in drawn for d in paths for word in re.findall(r"[^MLZhvz, ]+", d)]
    assert len(coordinates) > 1000
    assert all(abs(float(word)) < 1e5 for word in coordinates)


def odd_plots() -> list[Plot]:
    """What real runs do now and then: explode, have gaps, one point, nothing at all; marks and histograms."""
    log, linear = (
        {name: Axis(name, unit, log=log) for name, unit in (("a", "bytes"), ("b", "seconds"))} for log in (True, False)
    )
    wild = PlotLine(
        "wild", 1, {"a": [0, 1, 2, 3, 4], "b": [1.0, 3.0, 1e5, 1e9, 1e30]}, {"b": [0.1, 5.0, None, 1e9, 1e30]}, 3
    )
    calm = PlotLine("calm", 0, {"a": [0, 10, 20], "b": [2.0, None, 0.02]}, {"b": [0.0, None, 0.5]}, 2)
    edges = PlotLine("edges", 2, {"a": [0.1, 1, 10, 100], "b": [0.5, 0.0, 0.5, None]}, steps=True)
    marks = PlotLine("marks " * 20, 3, {"a": [5, 6], "b": [0.1, -1.0]}, points=True)
    alone = PlotLine("alone", 45, {"a": [7], "b": [7.0]})
    nothing = PlotLine("nothing", 5, {"a": [], "b": [1.0]})
    drawn = ([wild, calm], [edges], [marks, nothing, calm], [alone], [nothing], [])
    return [
        Plot("odd", axes, axes, lines, {"b": 0.3}, capped)
        for lines in drawn
        for axes in (log, linear)
        for capped in (True, False)
    ]


def test_the_script_draws_what_python_draws(page: Page) -> None:
    made = made_result()
    groups = group_runs(made["runs"])
    plot = build_group_plot("group-0", groups["4 workers, iid"], assign_styles(groups), read_target(made))
    assert plot
    for one, x, y in [*((plot, x, y) for x in plot.xs for y in plot.ys), *((odd, "a", "b") for odd in odd_plots())]:
        view = {"x": {"key": x, **vars(one.xs[x])}, "y": {"key": y, **vars(one.ys[y])}}
        given = [one.to_json(), view, [True] * len(one.lines), {"width": 590, "height": 400}, True]
        assert_alike(
            one.svg(x, y, Size(590, 400), key=True), page.run(f"thinwire.lineChart(...{json.dumps(given)}).svg")
        )


def assert_alike(ours: str, theirs: str) -> None:
    """Equal texts at equal places, equal lines, bands and colours; numbers to the last digit that is written."""
    (a, b) = (list(ElementTree.fromstring(svg).iter()) for svg in (ours, theirs))
    a = [e for e in a if not e.tag.endswith("title") and not (e.tag.endswith("}g") and "class" not in e.attrib)]
    assert [e.tag for e in a] == [e.tag for e in b]
    for one, other in zip(a, b, strict=True):
        assert one.text == other.text
        for name in (
            "x",
            "y",
            "x1",
            "y1",
            "x2",
            "y2",
            "d",
            "cx",
            "cy",
            "style",
            "stroke-dasharray",
            "viewBox",
            "points",
        ):
            left, right = (re.split(r"([-\d.]+)", e.get(name, "")) for e in (one, other))
            assert left[::2] == right[::2], name
            assert [float(v) for v in left[1::2] if v.strip("-.")] == pytest.approx(
                [float(v) for v in right[1::2] if v.strip("-.")], abs=0.11
            )


def test_the_script_writes_numbers_as_python_does(page: Page) -> None:
    values = [0, 1, 0.1, 1 / 3, 2.5e-7, 1e-4, 1e-5, 999.9, 1000, 12345, 123456.7, 1234567.8, 5e16, 3.2e-310, 0.0123]
    expected = {"number": lambda value: format_number(value, 6), "bytes": format_bytes, "seconds": format_seconds}
    for unit, write in expected.items():
        if unit != "number":  # no times below a microsecond, no thousandths of a byte
            values = [value for value in values if value == 0 or value >= 1e-4]
        assert page.run(f"{json.dumps(values)}.map(thinwire.UNITS.{unit})") == [write(value) for value in values]


def test_a_legend_entry_hides_its_curve_in_all_charts_of_the_group_and_brings_it_back(page: Page) -> None:
    entry = "document.querySelectorAll('ul[data-plot=group-0] button')[1]"
    second = "document.querySelectorAll('figure.plot[data-plot=group-0]')[1]"
    elsewhere = "document.querySelector('figure.plot[data-plot=group-1]')"
    assert len(lines(page)) == len(lines(page, second)) == 5
    press(page, entry)
    assert len(lines(page)) == len(lines(page, second)) == 4 and len(lines(page, elsewhere)) == 5
    assert page.run(f"{entry}.getAttribute('aria-pressed')") == "false"
    page.run(f"{entry}.focus()")
    page.press("Enter")  # by keyboard too
    assert len(lines(page)) == 5 and page.run(f"{entry}.getAttribute('aria-pressed')") == "true"


def test_all_curves_can_be_hidden_and_the_chart_says_so(page: Page) -> None:
    every = "document.querySelector('ul[data-plot=group-0] .all')"
    press(page, every)
    assert lines(page) == [] and page.run(f"{FIRST}.textContent.includes('no finite values')")
    press(page, every)
    assert len(lines(page)) == 5


def test_pointing_at_a_legend_entry_fades_the_others(page: Page) -> None:
    page.run("document.querySelectorAll('ul[data-plot=group-0] button')[2].focus()")
    chosen = page.run(f"[...{FIRST}.querySelectorAll('.curve')].map((c) => c.classList.contains('chosen'))")
    assert chosen == [False, False, True, False, False]
    assert page.run(f"{FIRST}.querySelector('svg.chart').classList.contains('pointed')")


def test_pointing_at_a_chart_tells_the_values_of_all_visible_curves(page: Page) -> None:
    choose(page, "x", "step")
    bring(page, FIRST)
    left, top, width, height = page.run(
        f"(({{x, y, width, height}}) => [x, y, width, height])({FIRST}.querySelector('svg.chart').getBoundingClientRect())"
    )
    page.move(left + width / 4, top + height / 2)
    told = page.run("document.querySelector('#tip').hidden ? '' : document.querySelector('#tip').innerText")
    for run in made_result(seeds=1)["runs"][:5]:
        assert run["label"] in told
    assert told.count("±") == 5 and told.count("step ") == 5
    (step,) = set(re.findall(r"step (\d+)", told))
    losses = [run["curve"]["loss"][run["curve"]["step"].index(int(step))] for run in made_result()["runs"][:3]]
    assert format_number(sum(losses) / 3, 6) in told
    assert page.run(f"{FIRST}.querySelectorAll('.cursor circle').length") == 5
    page.move(left + width / 4, max(0, top - 40))
    assert page.run("document.querySelector('#tip').hidden") and not page.run(f"!!{FIRST}.querySelector('.cursor')")


def test_arrow_keys_walk_along_a_chart(page: Page) -> None:
    bring(page, FIRST)
    page.run(f"{FIRST}.querySelector('.drawing').focus({{preventScroll: true}})")
    page.press("ArrowRight")
    first = page.run("document.querySelector('#tip').hidden ? '' : document.querySelector('#tip').innerText")
    for _ in range(8):
        page.press("ArrowRight")
    assert first and page.run("document.querySelector('#tip').innerText") != first


def test_switching_axes_and_scales_draws_anew(page: Page) -> None:
    seen = [lines(page)]
    for axis, key in (("x", "step"), ("y", "perplexity"), ("x", "seconds"), ("y", "accuracy")):
        choose(page, axis, key)
        seen.append(lines(page))
        assert len(seen[-1]) == 5 and seen[-1] not in seen[:-1]
    assert page.run(f"{FIRST}.querySelector('svg.chart').getAttribute('aria-label')") == "accuracy against seconds"
    press(page, f"{FIRST}.querySelector('input[data-axis=y]')")
    assert lines(page) not in seen
    assert MEASURES["accuracy"].title + " (log scale)" in page.run(f"{FIRST}.textContent")


def test_maps_and_bars_tell_what_is_pointed_at(page: Page) -> None:
    page.run(OPEN_ALL)
    where = "(({x, y, width, height}) => [x + 0.9 * width, y + 4 + height / 4])"
    heat = "document.querySelector('[data-picture=group-0-1-errors] svg')"
    bring(page, heat)
    page.move(*page.run(f"{where}({heat}.getBoundingClientRect())"))
    told = page.run("document.querySelector('#tip').innerText")
    assert re.fullmatch(r"transformer\.\S+ \([\d,]+ values\), step \d+: [\d.]+", told)
    bar = "document.querySelector('[data-picture=group-0-time] rect[data-tip]')"
    bring(page, bar)
    page.move(*page.run(f"(({{x, y}}) => [x + 3, y + 4])({bar}.getBoundingClientRect())"))
    assert page.run("document.querySelector('#tip').innerText").startswith("compute: 90 s")


def test_plots_are_saved_as_png_svg_and_csv(page: Page, tmp_path: Path) -> None:
    page.run(
        "window.saved = []; URL.createObjectURL = (blob) => { saved.push(blob); return 'about:blank#'; }; HTMLAnchorElement.prototype.click = function () { saved.at(-1).label = this.download; }"
    )
    for number, figure in enumerate((FIRST, "document.querySelector('[data-picture=group-0-1-errors]')"), 1):
        for words in ("SVG", "CSV", "PNG"):
            page.run(f"[...{figure}.querySelectorAll('.save button')].find((b) => b.textContent === '{words}').click()")
        page.wait_for(f"saved.length === {3 * number}")
    names = page.run("saved.map((blob) => blob.label)")
    assert names[:3] == ["group-0-loss-wire_bytes.svg", "group-0-loss-wire_bytes.csv", "group-0-loss-wire_bytes.png"]
    texts = page.run("Promise.all(saved.map((blob) => blob.text()))")
    for svg in (texts[0], texts[3]):
        root = ElementTree.fromstring(svg)
        assert float(root.attrib["width"]) > 300 and "var(" not in svg and "currentColor" not in svg
    assert "EF(Top-k 1 %)" in texts[0]  # the legend goes along
    assert (
        texts[1].splitlines()[0] == "curve,wire_bytes,loss,loss_std,seeds" and len(texts[1].splitlines()) == 1 + 5 * 21
    )
    assert '"SCAM(ImpK 1 %), w by mirror descent"' in texts[1]
    assert texts[4].startswith("layer,numel,step 0,")
    for at in (2, 5):
        size = page.run(f"createImageBitmap(saved[{at}]).then((image) => [image.width, image.height])")
        assert min(size) >= 400


def test_tables_are_sorted_by_any_column_with_the_unknown_last(page: Page) -> None:
    table = "[...document.querySelectorAll('table')].find((t) => t.textContent.includes('steps to accuracy'))"
    names = f"[...{table}.tBodies[0].rows].map((row) => row.cells[0].firstChild.textContent)"
    column = f"[...{table}.tHead.rows[0].cells].findIndex((c) => c.textContent === 'wire bytes')"
    head = f"{table}.tHead.rows[0].cells[{page.run(column)}].querySelector('button')"
    press(page, head)
    assert page.run(names)[-1] == "dense"
    press(page, head)
    assert page.run(names)[0] == "dense"
    press(page, f"{table}.tHead.rows[0].cells[1].querySelector('button')")
    assert page.run(names)[-1] == "Top-k 1 %"  # one of its seeds exploded: no loss
    press(page, f"{table}.tHead.rows[0].cells[1].querySelector('button')")
    assert page.run(names)[-1] == "Top-k 1 %"


def test_the_theme_switch_overrides_the_system(page: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    press(page, "document.querySelector('#theme')")
    assert page.run(ground) == light
    press(page, "document.querySelector('#theme')")
    assert page.run(ground) != light and page.run("document.querySelector('#theme').textContent") == "theme: dark"


def test_without_script_the_pictures_are_there(browser: Chromium, report: Path, tmp_path: Path) -> None:
    still = tmp_path / "still.html"
    still.write_text(re.sub(r"<script.*?</script>", "<script></script>", report.read_text(), flags=re.DOTALL))
    for width in (1280, 390):
        page = Page(browser, still, width)
        page.run(OPEN_ALL)
        assert page.run("document.querySelectorAll('svg.chart path').length") > 50
        assert page.run(CLASHES) == [] and page.run(TOO_WIDE) == []
        assert page.run("[...document.querySelectorAll('button')].every((b) => b.hidden)")
        page.close()


def test_old_and_bare_results_open_without_complaint(browser: Chromium, tmp_path: Path) -> None:
    old: dict[str, Any] = {"name": "old", "target_loss": 0.1, "checks": [], "runs": []}
    for run in made_result(seeds=1)["runs"]:
        kept = {
            key: run[key] for key in ("group", "label", "composition", "workers", "driver", "final", "bytes_by_kind")
        }
        old["runs"].append(
            kept | {"steps_to_target": None, "curve": {k: run["curve"][k] for k in ("step", "loss", "wire_bytes")}}
        )
    for name, result in (("old", old), ("bare", {"name": "bare", "runs": []})):
        write_report(result, tmp_path / f"{name}.html")
        page = Page(browser, tmp_path / f"{name}.html", 390)
        page.run(OPEN_ALL)
        assert page.complaints() == [] and page.run(CLASHES) == [] and page.run(TOO_WIDE) == []
        page.close()
