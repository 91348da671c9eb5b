"""Print docs/cli.md: every command with its options, from the program's parsers.

python tools/cli_reference.py > docs/cli.md
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from thinwire.cli import main

HEAD = """# Command line

Generated from the program's parsers by `python tools/cli_reference.py > docs/cli.md`; `thinwire COMMAND --help` prints
the same. Exit codes: {codes}. `testbed run` returns the exit code of the first worker that failed.

`parts`, `list`, `doctor`, `serve` and `join` need only `pip install thinwire`. The other commands need the extra
`lab` (`pip install 'thinwire[lab]'`); without it they print what is missing and return 2.

| command | what it does |
| --- | --- |
"""


def page() -> str:
    commands = list(leaves(main.parser()))
    codes = " ".join((main.main.__doc__ or "").split("\n\n")[1].split()).rstrip(".")
    rows = [f"| [`{parser.prog}`](#{anchor(parser.prog)}) | {cell(summary)} |\n" for parser, summary in commands]
    return HEAD.format(codes=codes) + "".join(rows) + "".join(section(parser) for parser, _ in commands)


def leaves(parser: argparse.ArgumentParser, summary: str = "") -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """All commands without subcommands, in the order of the help, each with its one-line help."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in inner:
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, sub in action.choices.items():
            yield from leaves(sub, helps[name])
    if not inner:
        yield parser, summary


def section(parser: argparse.ArgumentParser) -> str:
    arguments = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    words = [parser.prog, *(usage(action) for action in sorted(arguments, key=lambda a: bool(a.option_strings)))]
    description = re.sub(r"^`thinwire [^`]*`: (.)", lambda m: m[1].upper(), parser.description or "")
    text = f"\n## {parser.prog}\n\n{description.strip()}\n\n```\n{parser.usage or wrap_words(words)}\n```\n"
    if arguments:
        rows = (f"| `{name(action)}` | {cell(action.help or '')} |" for action in arguments)
        text += "\n".join(["\n| argument | meaning |", "| --- | --- |", *rows]) + "\n"
    return text


def name(action: argparse.Action) -> str:
    """The argument with its value: `--out FOLDER`, `A B`."""
    metavar = action.metavar if action.metavar is not None else ("" if action.nargs == 0 else action.dest.upper())
    value = " ".join(metavar) if isinstance(metavar, tuple) else metavar
    return " ".join(word for word in (*action.option_strings[-1:], value) if word)


def usage(action: argparse.Action) -> str:
    return f"[{name(action)}]" if action.option_strings and not action.required else name(action)


def wrap_words(words: list[str], width: int = 100) -> str:
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) > width:
            lines.append("    " + word)
        else:
            lines[-1] += " " + word
    return "\n".join(lines)


def cell(text: str) -> str:
    return text.replace("%%", "%").replace("|", "\\|")


def anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


if __name__ == "__main__":
    print(page(), end="")
