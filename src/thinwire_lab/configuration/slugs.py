"""Texts as parts of file names."""

from __future__ import annotations

import re


def slugify(text: str, max_length: int = 60, empty: str = "job") -> str:
    """Lower-case letters, digits and single hyphens, at most `max_length`; `empty` if nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:max_length] or empty
