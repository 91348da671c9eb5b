"""A hook of mkdocs: pages that live outside docs/, and links that leave docs/, as they are in the repository.

On GitHub and on disk a page links to `../examples/ddp_minimal.py`. The site gets a page for each such file, with its
text, under source/; so the same links lead somewhere in both places.
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
PAGES = {  # in the repository: on the site
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
    """Links between files of the repository become links between pages of the site."""
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown
    origin = Path(page.file.abs_src_path or "")

    def translated(match: re.Match[str]) -> str:
        place = site_place(origin.parent / match[1])
        return match[1] if place is None else posixpath.relpath(place, posixpath.dirname(here) or ".")

    return _LINK.sub(translated, markdown)


def outside(page: Path, text: str) -> Iterator[Path]:
    """What a page links to that is not in docs/."""
    for path in _LINK.findall(text):
        target = (page.parent / path).resolve()
        if target.is_file() and DOCS not in target.parents:
            yield target


def site_place(target: Path) -> str | None:
    """Where the site has a file of the repository; None if there is no such file."""
    target = target.resolve()
    if not target.is_file() or ROOT not in target.parents:
        return None
    path = target.relative_to(ROOT).as_posix()
    return PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md")


def source_page(file: Path) -> str:
    language = LANGUAGES.get(file.suffix, "text")
    return f"# {file.relative_to(ROOT).as_posix()}\n\n````{language}\n{file.read_text()}````\n"
