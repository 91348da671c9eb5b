from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from thinwire.experiments.report import dense_bytes, format_saving, method_styles, render_report, write_report


def make_run(label: str, composition: str, wire: float, group: str = "2 workers, lockstep") -> dict[str, Any]:
    steps = [0, 10, 20, 30]
    return {
        "group": group,
        "composition": composition,
        "label": label,
        "workers": 2,
        "driver": "lockstep",
        "curve": {
            "step": steps,
            "loss": [2.3, 1.1, 0.4, 0.1234],
            "grad_norm": [1.0, 0.5, 0.2, 0.05],
            "accuracy": [0.1, 0.5, 0.9, 0.975],
            "payload_bytes": [0.9 * wire * step / 30 for step in steps],
            "wire_bytes": [wire * step / 30 for step in steps],
        },
        "final": {
            "loss": 0.1234,
            "grad_norm": 0.05,
            "accuracy": 0.975,
            "payload_bytes": 0.9 * wire,
            "wire_bytes": wire,
        },
        "steps_to_target": 1230,
        "bytes_by_kind": {"values": 0.6 * wire, "indices": 0.3 * wire, "header": 0.1 * wire},
    }


@pytest.fixture
def result() -> dict[str, Any]:
    return {
        "name": "demo",
        "title": "Six ways",
        "about": "What is kept as a residual.",
        "command": "thinwire run demo",
        "versions": {"thinwire": "0.1.0", "torch": "2.13.0"},
        "config": {"seed": 7, "note": "<script>"},
        "target_loss": 0.12,
        "runs": [
            make_run("Dense", "dense", 120_000),
            make_run("EF(Top-k 10 %)", "ef(topk(density=0.1))", 10_000),
            make_run("Dense", "dense", 240_000, "4 workers, processes"),
            make_run("Sign", "ef(scaled_sign)", 8_000, "4 workers, processes"),
        ],
        "checks": [
            {"text": "processes match lockstep", "holds": True, "detail": "to the last bit"},
            {"text": "pigs fly", "holds": False},
        ],
    }


def charts_of(page: str) -> list[str]:
    return re.findall(r'<svg [^>]*class="chart".*?</svg>.*?</svg>', page, re.DOTALL)


def test_every_label_and_number_of_every_run_is_on_the_page(result: dict[str, Any]) -> None:
    page = render_report(result)
    for run in result["runs"]:
        assert run["label"] in page
        assert f"<code>{run['composition']}</code>" in page
    for text in ("0.1234", "97.5 %", "120 kB", "108 kB", "10 kB", "9 kB", "1×", "12×", "30×", "1,230"):
        assert f">{text}<" in page
    for text in ("Six ways", "residual", "thinwire run demo", "torch 2.13.0", "steps to loss 0.12", "seed&#34;: 7"):
        assert text in page


def test_checks_are_ticked_or_crossed(result: dict[str, Any]) -> None:
    page = render_report(result)
    assert page.count("✓") == page.count("✗") == 1
    assert page.index("✓") < page.index("processes match lockstep") < page.index("✗") < page.index("pigs fly")


def test_every_svg_on_the_page_is_well_formed(result: dict[str, Any]) -> None:
    page = render_report(result)
    charts = charts_of(page)
    assert len(charts) == 6
    small = re.findall(r'<svg [^>]*class="(?:swatch|bar)".*?</svg>', page, re.DOTALL)
    assert len(small) == 4 + 2
    for svg in charts + small:
        ElementTree.fromstring(svg)


def test_nulls_are_printed_as_dashes_and_break_nothing(result: dict[str, Any]) -> None:
    run = result["runs"][1]
    run["curve"]["loss"] = [2.3, None, float("nan"), None]
    run["curve"]["accuracy"] = [None] * 4
    run["curve"]["wire_bytes"][2] = None
    run["final"] = dict.fromkeys(run["final"])
    run["steps_to_target"] = None
    run["bytes_by_kind"] = {"values": None}
    page = render_report(result)
    assert page.count(">–</td>") == 6  # loss, accuracy, payload, wire, saving, steps
    for svg in charts_of(page):
        ElementTree.fromstring(svg)
        assert "nan" not in svg


def test_text_is_escaped_everywhere(result: dict[str, Any]) -> None:
    for run in result["runs"]:
        run["label"] = f"<b>{run['label']}</b>"
        run["composition"] = "<b>"
        run["group"] += "<b>"
        run["bytes_by_kind"] = {"<b>": 10}
    for key in ("title", "about", "command", "name"):
        result[key] = "<b>"
    result["checks"][0] = {"text": "<b>", "holds": True, "detail": "<b>"}
    result["versions"] = {"<b>": "<b>"}
    page = render_report(result)
    assert "<b>" not in page
    assert "<script" not in page
    assert "&lt;b&gt;Dense&lt;/b&gt;" in page


def test_the_page_loads_nothing(result: dict[str, Any]) -> None:
    page = render_report(result).replace("http://www.w3.org/2000/svg", "")
    assert "http" not in page
    assert not re.search(r"src=|href=|url\(|@import|@font-face|<script|<link", page)


def test_a_result_of_few_words_still_makes_a_page(result: dict[str, Any]) -> None:
    render_report({"name": "bare", "runs": []})
    for key in ("title", "about", "command", "versions", "config", "target_loss", "checks"):
        del result[key]
    assert "steps to target" in render_report(result)


def test_kinds_of_bytes_stand_in_one_order_with_the_largest_first(result: dict[str, Any]) -> None:
    result["runs"][0]["bytes_by_kind"] = {"header": 1_000, "values": 119_000}
    page = render_report(result)
    bars = page[page.index("Bytes by kind") :]
    assert re.findall(r"</i>(\w+) ", bars) == ["values", "header", "values", "indices", "header"]


def test_saving_is_dense_bytes_over_own_bytes() -> None:
    assert format_saving(1000, 80) == "12.5×"
    assert format_saving(1e6, 80) == "12,500×"
    assert format_saving(None, 80) == format_saving(1000, None) == format_saving(1000, 0) == "–"


def test_dense_is_found_by_name_and_not_mistaken_for_density() -> None:
    sparse = make_run("Top-k", "topk(density=0.1)", 5)
    local = make_run("Local", "local(dense, steps=8)", 7)
    assert dense_bytes([sparse]) is None
    assert dense_bytes([sparse, local, make_run("Dense", "dense", 50)]) == 50
    assert dense_bytes([sparse, make_run("Dense, 32 bits", "mean(identity)", 60)]) == 60


def test_the_result_is_not_changed_and_the_file_is_utf8(result: dict[str, Any], tmp_path: Path) -> None:
    before = copy.deepcopy(result)
    path = tmp_path / "new" / "folder" / "demo.html"
    write_report(result, path)
    assert result == before
    assert path.read_text(encoding="utf-8") == render_report(json.loads(json.dumps(result)))


def test_methods_of_one_group_never_share_a_style_and_keep_theirs_in_others():
    groups = {"one": "abc", "two": "ade", "three": "bdf"}
    runs = [{"group": group, "label": label} for group, labels in groups.items() for label in labels]
    styles = method_styles(runs)
    for labels in groups.values():
        assert len({styles[label] for label in labels}) == len(labels)
    assert max(styles.values()) <= 3
