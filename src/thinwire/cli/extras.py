"""Commands of the laboratory need the packages of the extra `lab`, which `pip install thinwire` does not install."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from importlib.util import find_spec

PACKAGES = ("rich", "jinja2", *(("tomli",) if sys.version_info < (3, 11) else ()))
INSTALL = "pip install 'thinwire[lab]'"

Command = Callable[[argparse.Namespace], int]


def find_missing_packages() -> list[str]:
    """Names of the packages of the extra `lab` that are not installed."""
    return [name for name in PACKAGES if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:
        return False


def requires_lab(name: str) -> Callable[[Command], Command]:
    """A decorator: the command raises MissingExtra before it does anything if packages are missing."""

    def wrap(command: Command) -> Command:
        @functools.wraps(command)
        def run(options: argparse.Namespace) -> int:
            if missing := find_missing_packages():
                from ..core import MissingExtra

                raise MissingExtra(
                    f"{name} needs packages that are not installed ({', '.join(missing)}); install them with: {INSTALL}"
                )
            return command(options)

        return run

    return wrap
