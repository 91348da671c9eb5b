"""Prints docs/cli.md: every command with its options, as the program's own parsers have them.

python tools/cli_reference.py > docs/cli.md
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from thinwire.cli import main

HEAD = """# Command line

Made from the program's own parsers by `python tools/cli_reference.py > docs/cli.md`; `thinwire COMMAND --help` says the
same. Exit codes:
{codes};
1 if something that must hold does not; `testbed run` ends with the code of the first worker that failed.

`parts`, `list`, `doctor`, `serve` and `join` work with what `pip install thinwire` brings; the others need the
extra `lab` (`pip install 'thinwire[lab]'`) and say so, with code 2, before anything else happens.

| command | what it does |
| --- | --- |
"""


def page() -> str:
    commands = list(leaves(main.parser()))
    codes = (main.main.__doc__ or "").split(";")[0]
    rows = [f"| [`{parser.prog}`](#{anchor(parser.prog)}) | {cell(summary)} |\n" for parser, summary in commands]
    return HEAD.format(codes=codes) + "".join(rows) + "".join(section(parser) for parser, _ in commands)


def leaves(parser: argparse.ArgumentParser, summary: str = "") -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """The commands that have none inside, in the order in which help lists them, and the word of help for each."""
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
    about = re.sub(r"^`thinwire [^`]*`: (.)", lambda m: m[1].upper(), parser.description or "")
    text = f"\n## {parser.prog}\n\n{about}\n\n```\n{parser.usage or wrapped(words)}\n```\n"
    if arguments:
        rows = (f"| `{name(action)}` | {cell(action.help or '')} |" for action in arguments)
        text += "\n".join(["\n| argument | meaning |", "| --- | --- |", *rows]) + "\n"
    return text


def name(action: argparse.Action) -> str:
    """With what it takes: `--out FOLDER`, `A B`."""
    metavar = action.metavar if action.metavar is not None else ("" if action.nargs == 0 else action.dest.upper())
    value = " ".join(metavar) if isinstance(metavar, tuple) else metavar
    return " ".join(word for word in (*action.option_strings[-1:], value) if word)


def usage(action: argparse.Action) -> str:
    return f"[{name(action)}]" if action.option_strings and not action.required else name(action)


def wrapped(words: list[str], width: int = 100) -> str:
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
