"""The option `--json FILE`. `--json -` writes to standard output; other output then goes to standard error."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

STDOUT = Path("-")


def add_json_option(parser: argparse.ArgumentParser, content: str) -> None:
    """Add --json; `content` says what the command writes to the file."""
    text = f"also write {content} to FILE as JSON; -: to standard output, other output to standard error"
    parser.add_argument("--json", type=Path, metavar="FILE", help=text)


@contextmanager
def json_to_stdout(options: argparse.Namespace) -> Iterator[None]:
    """Context of a command. With `--json -` the command writes a temporary file, which is printed when it ends."""
    if getattr(options, "json", None) != STDOUT:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="thinwire-") as folder:
        options.json = Path(folder) / "figures.json"
        try:
            with _stdout_as_stderr():
                yield
        finally:  # also print what an interrupted command has written so far
            if options.json.is_file():
                print(options.json.read_text(encoding="utf-8"), end="", flush=True)


@contextmanager
def _stdout_as_stderr() -> Iterator[None]:
    """Redirect standard output to standard error, for this process and its children."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
