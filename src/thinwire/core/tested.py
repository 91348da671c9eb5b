"""The versions of Python, torch and numpy on which `make test-versions` ran the suites; it writes the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("tested_versions.json")


class Combination(NamedTuple):
    """One combination, and what came of it."""

    python: str
    torch: str
    numpy: str
    date: str
    passed: int
    failed: int
    skipped: int

    @property
    def name(self) -> str:
        return f"Python {release(self.python)} with torch {release(self.torch)}"


def read_tested_versions() -> list[Combination]:
    """In the order of the file: by Python, then by torch."""
    return [Combination(**entry) for entry in json.loads(FILE.read_text())]


def release(version: str) -> str:
    """2.13 of 2.13.0+cpu: later numbers stand for repairs."""
    return ".".join(version.split("+")[0].split(".")[:2])


def describe_tests(python: str, torch: str) -> str:
    """What was tested, and whether that includes these versions."""
    good = [each.name for each in read_tested_versions() if not each.failed]
    is_tested = f"Python {release(python)} with torch {release(torch)}" in good
    return f"{'; '.join(good)}. This one: {'tested' if is_tested else 'not tested'}"
