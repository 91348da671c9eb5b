"""The program `thinwire`: parser, exit codes, errors as one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .. import __version__
from ..renamed import COMMANDS as RENAMED_COMMANDS
from ..renamed import FLAGS, hint
from . import bench, doctor, join, listing, parts, run, serve, show, testbed, verify_wire
from .json_output import json_to_stdout

COMMANDS = (run, show, listing, parts, serve, join, testbed, verify_wire, doctor, bench)
EXIT_CODES = {  # by name: torch is not loaded yet
    "PeerLostError": 75, "FrameError": 76, "DecodeError": 76, "ProtocolError": 76, "DivergedError": 76,
    "AuthenticationError": 77,
}  # fmt: skip


class Parser(argparse.ArgumentParser):
    """A parser with an error for renamed flags and commands that has the new name."""

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        words = list(sys.argv[1:] if args is None else args)
        for at, word in enumerate(words):
            old = hint(RENAMED_COMMANDS, word) if at == 0 else ""
            for size in (1, 2):  # "serve --down" and "bench ddp --no-peers"
                old = old or hint(FLAGS, " ".join([*words[:size], word.partition("=")[0]]) if at >= size else "")
            if old:
                self.error(f"{word}: no such {'command' if at == 0 else 'option'}{old}")
        return super().parse_args(args, namespace)


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="thinwire", description="Compressed communication for distributed training over slow links.")
    top.add_argument("--version", action="version", version=f"thinwire {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; an error is printed as one line, without a traceback.

    0 success, 1 a check failed, 2 wrong input, 75 a peer was lost, 76 a message was damaged or ranks disagree,
    77 authentication failed, 130 interrupted.
    """
    options = parser().parse_args(arguments)
    try:
        with json_to_stdout(options):
            return int(options.command(options))
    except KeyboardInterrupt:
        print("thinwire: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"thinwire: {error}", file=sys.stderr)
        return EXIT_CODES.get(type(error).__name__, 2)
    except Exception as error:
        from ..core import ThinwireError

        if not isinstance(error, ThinwireError):
            raise
        print(f"thinwire: {error}", file=sys.stderr)
        return EXIT_CODES.get(type(error).__name__, 2)


if __name__ == "__main__":
    sys.exit(main())
