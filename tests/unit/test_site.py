"""The documentation site builds without a warning, needs no other host, and tells what the program is today."""

import re
import runpy
from html.parser import HTMLParser
from pathlib import Path

import pytest

from thinwire_lab.configuration.config import Experiment, Method, OptimizerConfig, RunGroup
from thinwire_lab.published import SUMMARIES
from thinwire_lab.tasks import TASKS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built as `make docs` does; a warning is an error there."""
    commands = pytest.importorskip("mkdocs.commands.build", reason="mkdocs comes with the extra `dev`")
    config = pytest.importorskip("mkdocs.config")
    place = tmp_path_factory.mktemp("site")
    made = config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(place))
    assert made.strict
    commands.build(made)
    return place


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.loaded, self.links, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, pairs):
        attributes = dict(pairs)
        if tag in LOADED and attributes.get(LOADED[tag]):
            self.loaded.append(attributes[LOADED[tag]])
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        self.anchors |= {attributes[key] for key in ("id", "name") if attributes.get(key)}


def pages(site):
    return {file: Page(file.read_text()) for file in site.rglob("*.html")}


def test_every_page_is_on_the_site_with_its_text(site):
    for page in DOCS.rglob("*.md"):
        built = site / page.relative_to(DOCS).with_suffix(".html")
        assert len(built.read_text()) > len(page.read_text()) / 2, page


def test_no_page_loads_anything_from_another_host(site):
    for file, page in pages(site).items():
        assert not [place for place in page.loaded if "//" in place], file
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(\s*|@import\s+)['\"]?(https?:)?//", sheet.read_text()), sheet


def test_links_lead_to_files_and_headings_of_the_site(site):
    built = pages(site)
    for file, page in built.items():
        if file.name == "404.html":  # its links begin at the root of a server
            continue
        for link in (link for link in page.links if "://" not in link and not link.startswith("mailto:")):
            path, _, heading = link.partition("#")
            target = (file.parent / path).resolve() if path else file
            assert target.is_file(), (file, link)
            assert not heading or target.suffix != ".html" or heading in built[target].anchors, (file, link)


def test_the_page_of_commands_is_what_the_parsers_say():
    page = runpy.run_path(str(ROOT / "tools" / "cli_reference.py"))["page"]
    assert (DOCS / "cli.md").read_text() == page(), "run: python tools/cli_reference.py > docs/cli.md"


def test_every_named_experiment_has_a_page_and_a_row():
    overview = (DOCS / "experiments" / "index.md").read_text()
    for name in SUMMARIES:
        assert f"[`thinwire run {name}`]({name}.md)" in overview
        assert f"`thinwire run {name}" in (DOCS / "experiments" / f"{name}.md").read_text()


@pytest.mark.parametrize("kind", (Experiment, RunGroup, Method, OptimizerConfig))
def test_every_key_of_a_config_is_in_the_table(kind):
    overview = (DOCS / "experiments" / "index.md").read_text()
    for key in kind.__dataclass_fields__:
        assert f"`{key}`" in overview or f"[{key}]" in overview or f"[[{key}]]" in overview or key == "label", key


def test_every_task_is_in_the_table():
    overview = (DOCS / "experiments" / "index.md").read_text()
    assert all(f"`{task}`" in overview for task in TASKS)


def test_the_tutorial_quotes_the_example():
    example = (ROOT / "examples" / "lab.toml").read_text().partition("\n")[2]
    assert example in (DOCS / "tutorials" / "researcher.md").read_text()
