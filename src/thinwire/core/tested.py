"""The versions of Python, torch and numpy on which `make test-versions` ran the test suites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("tested_versions.json")  # written by `make test-versions`


class TestedVersions(NamedTuple):
    """One combination of versions, and the results of its tests."""

    python: str
    torch: str
    numpy: str
    date: str
    passed: int
    failed: int
    skipped: int

    @property
    def name(self) -> str:
        """Short versions, such as "Python 3.11 with torch 2.13"; later numbers are patches."""
        return f"Python {release(self.python)} with torch {release(self.torch)}"


def read_tested_versions() -> list[TestedVersions]:
    """The tested combinations, by Python, then by torch."""
    return [TestedVersions(**entry) for entry in json.loads(FILE.read_text())]


def release(version: str) -> str:
    """Major and minor version: "2.13" of "2.13.0+cpu"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def describe_tests(python: str, torch: str) -> str:
    """A text: the tested combinations, and whether these versions are among them."""
    passed = [each.name for each in read_tested_versions() if not each.failed]
    is_tested = f"Python {release(python)} with torch {release(torch)}" in passed
    return f"{'; '.join(passed)}. This one: {'tested' if is_tested else 'not tested'}"
