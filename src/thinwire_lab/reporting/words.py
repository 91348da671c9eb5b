"""The page's tables in words: for a terminal, for Markdown, for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .exhibits import table_view
from .seeds import gather_groups
from .tables import Cell, Table, headline, modelled_groups, modelled_table, target_of

MODELLED = "Modelled: measured compute and bytes over the link's stated bandwidth; nothing was timed on such a link."


def all_tables(result: Mapping[str, Any]) -> Iterator[Table]:
    """Every table of the page, in its order."""
    yield from (table_view(table) for table in result.get("tables", []))
    target = target_of(result)
    for title, members in gather_groups(result.get("runs", [])).items():
        yield headline(title, members, target)
    for title, entries in modelled_groups(result).items():
        yield modelled_table(f"{title}, modelled", entries)._replace(note=MODELLED)


def cell_words(cell: Cell) -> str:
    """What is read, with a standard deviation behind it."""
    spread = [text for tag, text in cell.under if tag == "small" and text.startswith("±")]
    return " ".join([cell.text, *spread]).replace("\u00a0", " ")


def as_json(table: Table) -> dict[str, Any]:
    """Figures as numbers where the page sorts by numbers."""
    rows = [[cell.order if isinstance(cell.order, int | float) else cell_words(cell) for cell in r] for r in table.rows]
    return {"title": table.title, "note": table.note, "columns": [name for name, _ in table.columns], "rows": rows}


def write_markdown(result: Mapping[str, Any], path: Path, pictures: Sequence[Path] = ()) -> None:
    """A page for the docs: what was run, its checks, all tables, and pictures that lie beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_markdown(result, path, pictures)) + "\n", encoding="utf-8")


def _markdown(result: Mapping[str, Any], path: Path, pictures: Sequence[Path]) -> Iterator[str]:
    yield f"# {result.get('title') or result['name']}\n\n{result.get('about', '')}\n"
    yield f"`{result.get('command', '')}`, {_facts(result.get('versions'))}; {_facts(result.get('machine'))}.\n"
    if cut := (result.get("task") or {}).get("cut"):
        yield f"Data: {cut}.\n"
    for check in result.get("checks", []):
        yield f"- {'✓' if check['holds'] else '✗'} {check['text']} ({check.get('detail', '')})"
    for table in all_tables(result):
        yield f"\n## {table.title}\n"
        if table.note:
            yield f"{table.note}\n"
        yield "| " + " | ".join(name for name, _ in table.columns) + " |"
        yield "| " + " | ".join("---:" if side == "number" else "---" for _, side in table.columns) + " |"
        for row in table.rows:
            yield "| " + " | ".join(cell_words(cell).replace("|", "\\|") for cell in row) + " |"
    for picture in pictures:
        yield f"\n![{picture.stem.replace('-', ' ')}]({picture.relative_to(path.parent).as_posix()})"


def _facts(facts: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in (facts or {}).items())
