"""An mkdocs hook for pages outside of docs/ and for links from docs/ to other files of the repository.

A page may link to `../examples/ddp_minimal.py`. The site gets a page under source/ with the text of each such file, so that
the link works on the site as well as on GitHub.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {  # path in the repository -> path on the site
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples/index.md",
    "examples/launch/README.md": "examples/launch/index.md",
}
LANGUAGES = {".py": "python", ".toml": "toml", ".sbatch": "bash"}
_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for inside, place in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / inside)))
    texts = [(Path(f.abs_src_path or ""), f.content_string) for f in files.documentation_pages()]
    linked = {target for page, text in texts for target in outside(page, text)}
    for target in sorted(linked):
        if place := site_place(target):
            if place.startswith("source/"):
                files.append(File.generated(config, place, content=source_page(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links between files of the repository by links between pages of the site."""
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown
    origin = Path(page.file.abs_src_path or "")

    def translate(match: re.Match[str]) -> str:
        place = site_place(origin.parent / match[1])
        return match[1] if place is None else posixpath.relpath(place, posixpath.dirname(here) or ".")

    return _LINK.sub(translate, markdown)


def outside(page: Path, text: str) -> Iterator[Path]:
    """Files outside of docs/ that a page links to."""
    for path in _LINK.findall(text):
        target = (page.parent / path).resolve()
        if target.is_file() and DOCS not in target.parents:
            yield target


def site_place(target: Path) -> str | None:
    """The path of a repository file on the site; None if there is no such file."""
    target = target.resolve()
    if not target.is_file() or ROOT not in target.parents:
        return None
    path = target.relative_to(ROOT).as_posix()
    return PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md")


def source_page(file: Path) -> str:
    language = LANGUAGES.get(file.suffix, "text")
    return f"# {file.relative_to(ROOT).as_posix()}\n\n````{language}\n{file.read_text()}````\n"
