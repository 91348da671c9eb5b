"""Words as parts of file names."""

from __future__ import annotations

import re


def slugify(words: str, most: int = 60, empty: str = "job") -> str:
    """At most so many small letters, digits and single hyphens; `empty` where nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:most] or empty
