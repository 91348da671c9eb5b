"""The report's tables as text: for a terminal, as Markdown, as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .result_tables import build_table
from .seeds import group_runs
from .tables import (
    Cell,
    ReportTable,
    build_group_table,
    build_modelled_table,
    group_modelled,
    read_description,
    read_target,
)

MODELLED = "Modelled from measured compute and bytes and the link's stated bandwidth; nothing was timed on such a link."


def collect_tables(result: Mapping[str, Any]) -> Iterator[ReportTable]:
    """Yield every table of the page, in its order."""
    yield from (build_table(table) for table in result.get("tables", []))
    target = read_target(result)
    for title, members in group_runs(result.get("runs", [])).items():
        yield build_group_table(title, members, target)
    for title, entries in group_modelled(result).items():
        yield build_modelled_table(f"{title}, modelled", entries)._replace(note=MODELLED)


def cell_to_text(cell: Cell) -> str:
    """Return the text of a cell, followed by its standard deviation."""
    spread = [text for tag, text in cell.under if tag == "small" and text.startswith("±")]
    return " ".join([cell.text, *spread]).replace("\u00a0", " ")


def table_to_json(table: ReportTable) -> dict[str, Any]:
    """Return a table as JSON, with numbers where the page sorts by numbers."""
    rows = [
        [cell.order if isinstance(cell.order, int | float) else cell_to_text(cell) for cell in r] for r in table.rows
    ]
    return {"title": table.title, "note": table.note, "columns": [name for name, _ in table.columns], "rows": rows}


def write_markdown(result: Mapping[str, Any], path: Path, pictures: Sequence[Path] = ()) -> None:
    """Write a page for the docs: what was run, its checks, all tables, and the given pictures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_markdown_lines(result, path, pictures)) + "\n", encoding="utf-8")


def _markdown_lines(result: Mapping[str, Any], path: Path, pictures: Sequence[Path]) -> Iterator[str]:
    yield f"# {result.get('title') or result['name']}\n\n{read_description(result)}\n"
    versions, machine = _join_facts(result.get("versions")), _join_facts(result.get("machine"))
    yield f"`{result.get('command', '')}`, {versions}; {machine}.\n"
    if cut := (result.get("task") or {}).get("cut"):
        yield f"Data: {cut}.\n"
    for check in result.get("checks", []):
        yield f"- {'✓' if check['holds'] else '✗'} {check['text']} ({check.get('detail', '')})"
    for table in collect_tables(result):
        yield f"\n## {table.title}\n"
        if table.note:
            yield f"{table.note}\n"
        yield "| " + " | ".join(name for name, _ in table.columns) + " |"
        yield "| " + " | ".join("---:" if side == "number" else "---" for _, side in table.columns) + " |"
        for row in table.rows:
            yield "| " + " | ".join(cell_to_text(cell).replace("|", "\\|") for cell in row) + " |"
    for picture in pictures:
        yield f"\n![{picture.stem.replace('-', ' ')}]({picture.relative_to(path.parent).as_posix()})"


def _join_facts(facts: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in (facts or {}).items())
