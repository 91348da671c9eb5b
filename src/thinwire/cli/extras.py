"""Commands of the laboratory need packages that `pip install thinwire` does not bring: the extra `lab`."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from importlib.util import find_spec

PACKAGES = ("rich", "jinja2", *(("tomli",) if sys.version_info < (3, 11) else ()))
INSTALL = "pip install 'thinwire[lab]'"

Command = Callable[[argparse.Namespace], int]


def find_missing() -> list[str]:
    """Packages of the extra that are not installed."""
    return [name for name in PACKAGES if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:
        return False


def needs_laboratory(name: str) -> Callable[[Command], Command]:
    """A command of this name that is refused, before anything else happens, where packages are missing."""

    def wrap(command: Command) -> Command:
        @functools.wraps(command)
        def run(options: argparse.Namespace) -> int:
            if missing := find_missing():
                from ..core import MissingExtra

                raise MissingExtra(f"{name} needs the laboratory ({', '.join(missing)} not installed): {INSTALL}")
            return command(options)

        return run

    return wrap
