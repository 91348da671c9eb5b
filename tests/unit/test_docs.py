"""The pages say what the code does: generated tables are up to date, examples give what is printed, links lead on."""

import doctest
import re
from pathlib import Path

import pytest

from thinwire.describe import compressor_rows, to_markdown
from thinwire.testing import keep_registry
from thinwire_lab import tasks
from thinwire_lab.bench import indices

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
EVERY = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def test_the_page_of_parts_is_what_the_command_prints():
    written = (ROOT / "docs" / "parts.md").read_text()
    assert written == to_markdown(compressor_rows()) + "\n", "run: thinwire parts --markdown > docs/parts.md"


def test_the_table_of_index_codings_is_what_the_benchmark_prints(capsys):
    indices.main([])
    assert capsys.readouterr().out in (ROOT / "docs" / "wire.md").read_text()


@EVERY
def test_examples_in_a_page_give_what_is_printed(page):
    text = "\n".join(re.findall(r"```pycon\n(.*?)```", page.read_text(), re.DOTALL))
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    said, held = [], dict(tasks.TASKS)
    try:
        with keep_registry():  # what a page registers is for that page
            result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    finally:
        tasks.TASKS.clear()
        tasks.TASKS.update(held)
    assert not result.failed, "".join(said)


@EVERY
def test_links_lead_to_files_and_headings_that_exist(page):
    for path, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not heading or heading in anchors(target.read_text()), (path, heading)


def anchors(text):
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    named = re.findall(r'<a id="([\w-]+)">', text)
    return {*named} | {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
