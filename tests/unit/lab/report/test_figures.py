from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from helpers.sample_result import made_result
from thinwire.core import MissingExtra
from thinwire_lab.configuration.slugs import slugify
from thinwire_lab.reporting import write_figures
from thinwire_lab.reporting.figures import draw_pictures


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return made_result()


def test_every_picture_is_an_svg_of_its_own_with_its_figures(result: dict[str, Any], tmp_path: Path) -> None:
    written = write_figures(result, tmp_path / "new" / "figures")
    assert {path.suffix for path in written} == {".svg", ".csv"} and all(path.exists() for path in written)
    for path in written:
        if path.suffix == ".svg":
            svg = path.read_text(encoding="utf-8")
            assert ElementTree.fromstring(svg).attrib["width"] and "var(" not in svg and "nan" not in svg
        else:
            head, *rows = csv.reader(path.open(encoding="utf-8"))
            assert rows and all(len(row) == len(head) for row in rows)


def test_names_are_good_for_files_and_no_two_are_alike(result: dict[str, Any]) -> None:
    names = [picture.name for picture in draw_pictures(result)]
    assert len(set(names)) == len(names) and all(slugify(name[:40]) == name[:40].strip("-") for name in names)
    assert "group-1-4-workers-iid-accuracy-wire-bytes" in names and "group-1-4-workers-iid-loss-seconds" in names
    assert not any(name.startswith("group-2") and name.endswith("seconds") for name in names)  # simulated


def test_figures_of_a_curve_are_mean_and_spread_by_label(result: dict[str, Any]) -> None:
    (picture,) = [p for p in draw_pictures(result) if p.name == "group-1-4-workers-iid-loss-step"]
    assert picture.columns == ["curve", "step", "loss", "loss_std", "seeds"]
    first = [run["curve"]["loss"][0] for run in result["runs"][:3]]
    assert picture.rows[0][:2] == ["dense", 0] and picture.rows[0][2] == pytest.approx(sum(first) / 3)
    assert "dense" in picture.svg and "QSGD 4 bits &lt;b&gt;" in picture.svg  # the legend is in the picture


def test_png_files_are_drawn_or_it_is_said_what_is_missing(result: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("resvg_py", reason="PNG files need the extra `figures`")
    pngs = [
        path
        for path in write_figures({"name": "x", "figures": result["figures"]}, tmp_path, png=True)
        if path.suffix == ".png"
    ]
    assert len(pngs) == 1 and pngs[0].read_bytes().startswith(b"\x89PNG")


def test_without_the_extra_nothing_is_written(
    result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)  # as if it were not installed
    with pytest.raises(MissingExtra, match=r"pip install \"thinwire\[figures\]\""):
        write_figures(result, tmp_path / "none", png=True)
    assert not (tmp_path / "none").exists()
