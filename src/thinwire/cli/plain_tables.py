"""Plain-text tables, for commands that work without the extra `lab`."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence

GAP = "  "
MIN_WIDTH = 10  # of a wrapped column


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table as wide as the terminal, or 120 characters if there is none."""
    if title:
        print(title)
    for line in draw_table(head, rows, shutil.get_terminal_size((120, 24)).columns):
        print(line)


def draw_table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Lines of a table: head, rule, rows. The widest columns are wrapped to fit the width."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width and max(widths) > MIN_WIDTH:
        widths[widths.index(max(widths))] -= 1
    yield from _draw_row(head, widths)
    yield GAP.join("-" * size for size in widths)
    for row in rows:
        yield from _draw_row(row, widths)


def _draw_row(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    wrapped = [textwrap.wrap(cell, size) if size else [] for cell, size in zip(cells, widths, strict=True)]
    for at in range(max(1, *map(len, wrapped))):
        parts = [lines[at] if at < len(lines) else "" for lines in wrapped]
        yield GAP.join(part.ljust(size) for part, size in zip(parts, widths, strict=True)).rstrip()
