"""Published pages: what they say is computed from the results file beside them."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
FILES = sorted(RESULTS.glob("*.json.xz"))
TOOL = runpy.run_path(str(ROOT / "tools" / "publish_results.py"))
EVERY = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


def lines_of(page, title):
    """The rows of one table of a page."""
    part = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [line for line in part.splitlines() if line.startswith("| ")][2:]


@EVERY
def test_a_page_is_what_its_results_file_makes_of_it(file, tmp_path):
    page = TOOL["publish"](file, into=tmp_path)
    written = (RESULTS / page.name).read_text()
    assert page.read_text() == written, f"run: python tools/publish_results.py {file.relative_to(ROOT)}"


@EVERY
def test_a_results_file_is_small_and_names_no_folder_of_a_machine(file):
    assert file.stat().st_size < TOOL["MAX_BYTES"]
    assert "--data" not in TOOL["read"](file)["command"]


def test_local_sgd_gossip_verdicts_follow_from_its_results_file():
    from thinwire_lab.published.local_sgd_gossip.tables import build_findings_table

    table = build_findings_table(TOOL["read"](RESULTS / "local-sgd-gossip.json.xz")["runs"])
    expected = [f"| {' | '.join(row)} |" for row in table["rows"]]
    assert expected and lines_of((RESULTS / "local-sgd-gossip.md").read_text(), table["title"]) == expected
