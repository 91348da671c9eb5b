"""`--json FILE` of all commands. `--json -` is standard output; what else is printed then goes to standard error."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

STDOUT = Path("-")


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    words = f"write {what} to FILE, too; -: to standard output, and all else to standard error"
    parser.add_argument("--json", type=Path, metavar="FILE", help=words)


@contextmanager
def json_to_stdout(options: argparse.Namespace) -> Iterator[None]:
    """Around a command. If its --json is "-", it writes a temporary file instead, which is printed when it ends."""
    if getattr(options, "json", None) != STDOUT:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="thinwire-") as folder:
        options.json = Path(folder) / "figures.json"
        try:
            with _stdout_as_stderr():
                yield
        finally:  # what a command that is interrupted has written so far is printed, too
            if options.json.is_file():
                print(options.json.read_text(encoding="utf-8"), end="", flush=True)


@contextmanager
def _stdout_as_stderr() -> Iterator[None]:
    """For this process and those it starts."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
