from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from helpers.sample_result import made_result
from thinwire_lab.reporting import render_report, write_report
from thinwire_lab.reporting.seeds import assign_styles, group_runs
from thinwire_lab.reporting.tables import find_dense_bytes, format_saving


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
        "description": "What is kept as a residual.",
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


def svgs_of(page: str) -> list[ElementTree.Element]:
    """All pictures that stand in the page itself, each read as XML; script.js's own text is no picture."""
    body = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    found = re.findall(r"<svg xmlns=.*?</svg>(?=</div>|<span>)", body, re.DOTALL)
    return [ElementTree.fromstring(svg) for svg in found]


def data_of(page: str) -> Any:
    """What the page hands to its script."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found.group(1))


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
    kinds = [svg.attrib["class"] for svg in svgs_of(render_report(result))]
    assert kinds.count("swatch") == 4
    assert kinds.count("chart") == 2 * (2 + 1)  # two line charts and the bytes by kind of each group
    kinds = [svg.attrib["class"] for svg in svgs_of(render_report(made_result()))]
    assert kinds.count("chart") == 1 + 2 * (2 + 1 + 2 + 5 * 2) + 1 + 2 * 3


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
    assert svgs_of(page)
    assert not any("nan" in ElementTree.tostring(svg, "unicode") for svg in svgs_of(page))
    data_of(page)


def test_text_is_escaped_everywhere(result: dict[str, Any]) -> None:
    for run in result["runs"]:
        run["label"] = f"<b>{run['label']}</b>"
        run["composition"] = "<b>"
        run["group"] += "<b>"
        run["bytes_by_kind"] = {"<b>": 10}
    for key in ("title", "description", "command", "name"):
        result[key] = "<b>"
    result["checks"][0] = {"text": "<b>", "holds": True, "detail": "<b>"}
    result["versions"] = {"<b>": "<b>"}
    page = render_report(result)
    assert "<b>" not in page
    assert page.count("<script") == 2  # the data and our own
    assert "&lt;b&gt;Dense&lt;/b&gt;" in page


def test_the_page_loads_nothing(result: dict[str, Any]) -> None:
    page = render_report(result).replace("http://www.w3.org/2000/svg", "")
    assert "http" not in page
    assert not re.search(r"src=|href=|url\(|@import|@font-face|<link|fetch\(|XMLHttp|import\(|eval\(|Function\(", page)


def test_a_result_of_few_words_still_makes_a_page(result: dict[str, Any]) -> None:
    render_report({"name": "bare", "runs": []})
    for key in ("title", "description", "command", "versions", "config", "target_loss", "checks"):
        del result[key]
    assert "steps to" not in render_report(result)


def test_kinds_of_bytes_stand_in_one_order_with_the_largest_first(result: dict[str, Any]) -> None:
    result["runs"][0]["bytes_by_kind"] = {"header": 1_000, "values": 119_000}
    kinds = data_of(render_report(result))["pictures"]["group-0-kinds"]
    assert kinds["columns"] == ["method", "values", "indices", "header"]
    assert kinds["rows"] == [["Dense", 119_000, 0, 1_000], ["EF(Top-k 10 %)", 6_000, 3_000, 1_000]]


def test_saving_is_dense_bytes_over_own_bytes() -> None:
    assert format_saving(1000, 80) == "12.5×"
    assert format_saving(1e6, 80) == "12,500×"
    assert format_saving(None, 80) == format_saving(1000, None) == format_saving(1000, 0) == "–"


def test_dense_is_found_by_name_and_not_mistaken_for_density() -> None:
    sparse = make_run("Top-k", "topk(density=0.1)", 5)
    local = make_run("Local", "local(dense, steps=8)", 7)

    def among(*runs: dict[str, Any]) -> float | None:
        return find_dense_bytes(group_runs(runs)["2 workers, lockstep"])

    assert among(sparse) is None
    assert among(sparse, local, make_run("Dense", "dense", 50)) == 50
    assert among(sparse, make_run("Dense, 32 bits", "mean(identity)", 60)) == 60


def test_the_result_is_not_changed_and_the_file_is_utf8(result: dict[str, Any], tmp_path: Path) -> None:
    before = copy.deepcopy(result)
    path = tmp_path / "new" / "folder" / "demo.html"
    write_report(result, path)
    assert result == before
    assert path.read_text(encoding="utf-8") == render_report(json.loads(json.dumps(result)))


def test_methods_of_one_group_never_share_a_style_and_keep_theirs_in_others():
    groups = {"one": "abc", "two": "ade", "three": "bdf"}
    runs = [{"group": group, "label": label} for group, labels in groups.items() for label in labels]
    styles = assign_styles(group_runs(runs))
    for labels in groups.values():
        assert len({styles[label] for label in labels}) == len(labels)
    assert max(styles.values()) <= 3


def test_seeds_of_one_method_are_one_row_and_one_curve() -> None:
    made = made_result(seeds=3)
    page = render_report(made)
    assert page.count("<code>dense()</code>") == 2  # one row in each group
    lines = data_of(page)["plots"]["group-0"]["lines"]
    assert [line["label"] for line in lines] == list(dict.fromkeys(run["label"] for run in made["runs"]))
    assert {line["seeds"] for line in lines} == {3} and "<small>± " in page and "standard deviation" in page
    assert ">–<small>2 of 3 finite</small>" in page  # one seed exploded, so the method has no mean
    single = render_report(made_result(seeds=1))
    assert "± " not in re.sub(r"<script.*?</script>", "", single, flags=re.DOTALL)


def test_what_is_modelled_stands_in_tables_of_its_own() -> None:
    made = made_result()
    page = render_report(made)
    measured, modelled = page.split("Modelled, not measured")
    assert "modelled" not in re.sub(r"<style.*?</style>", "", measured, flags=re.DOTALL).lower()
    assert modelled.count('data-name="modelled step, 1gbit"') == 2 * 5
    del made["modelled"]
    assert "odelled, not measured" not in render_report(made)


def test_only_measures_that_were_taken_can_be_chosen(result: dict[str, Any]) -> None:
    plot = data_of(render_report(result))["plots"]["group-0"]
    assert list(plot["ys"]) == ["loss", "accuracy", "grad_norm"]
    assert list(plot["xs"]) == ["wire_bytes", "payload_bytes", "step"]
    full = data_of(render_report(made_result()))["plots"]
    assert list(full["group-0"]["ys"]) == ["loss", "train_loss", "accuracy", "perplexity", "grad_norm"]
    assert full["group-0"]["xs"]["seconds"]["title"] == "seconds"
    assert "one process" in full["group-1"]["xs"]["seconds"]["title"]  # lockstep: not what workers would take
    assert full["group-0"]["targets"] == {"accuracy": 0.6}


def test_a_world_of_one_is_drawn_against_payload_bytes(result: dict[str, Any]) -> None:
    for run in result["runs"]:
        run["curve"]["wire_bytes"] = [0] * 4
    assert next(iter(data_of(render_report(result))["plots"]["group-0"]["xs"])) == "payload_bytes"


def test_a_group_over_several_links_is_one_group_per_link(result: dict[str, Any]) -> None:
    result["runs"] = [run | {"link": link} for run in result["runs"][:2] for link in ("none", "100mbit")]
    page = render_report(result)
    assert "2 workers, lockstep, link none" in page and "2 workers, lockstep, link 100mbit" in page


def test_machine_task_trace_and_plan_are_told() -> None:
    page = render_report(made_result())
    for text in ("made-up CPU", "1,000,000 of 2,088,628 tokens", "jobs/3/trace.json", "33,278", "2026-11-16 03:00 UTC"):
        assert text in page
    assert "thinwire run made-up --seeds 0 1 2 --workers 4" in page


def test_script_and_pages_stay_small() -> None:
    page = render_report(made_result())
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[0]
    assert len(script.splitlines()) < 500
    assert len(page) < 600_000
