"""Every command prints its help."""

import argparse

import pytest

from thinwire.cli.main import parser


def list_parsers(parser):
    yield parser.prog, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from list_parsers(command)


PARSERS = dict(list_parsers(parser()))


@pytest.mark.parametrize("command", PARSERS)
def test_help_names_every_argument(command):
    text = PARSERS[command].format_help()
    for action in PARSERS[command]._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            assert action.option_strings[0] in text
