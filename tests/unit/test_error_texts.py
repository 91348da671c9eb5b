"""Every error of the catalog and of the command line, in tests/golden, so that a reader can look them over.

After a change of texts: THINWIRE_WRITE_GOLDEN=1 python -m pytest tests/unit/test_error_texts.py, then read the diff.
"""

import ast
import os
import re
from pathlib import Path

import pytest

import thinwire
from helpers.bad_input import CATALOG_CALLS, COMMAND_LINES, bad_settings
from thinwire.cli.main import main
from thinwire.core import ThinwireError
from thinwire.testing import keep_registry

SRC = Path(thinwire.__file__).parent
GOLDEN = Path(__file__).parents[1] / "golden"
PACKAGES = ("catalog", "compressors", "aggregators", "feedback", "controllers", "topologies")


def raised_at(error):
    """The line of ours that raised it first, in the file it stands in: an error with a mark wraps that of the part."""
    while error.__context__ is not None and isinstance(error.__context__, ThinwireError):
        error = error.__context__
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    file = Path(traceback.tb_frame.f_code.co_filename)
    return (str(file.relative_to(SRC)), traceback.tb_lineno) if SRC in file.parents else ("", 0)


def raises_of(package):
    """Lines of the statements that raise an error of the catalog."""
    for path in sorted((SRC / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = getattr(node.exc.func, "id", "")
                if name in ("CompositionError", "IncompatibleParts"):
                    yield str(path.relative_to(SRC)), range(node.lineno, node.end_lineno + 1)


def collect_catalog():
    """(file, line) -> (input, text), the first of each place."""
    found = {}
    with keep_registry():
        for name, call in [*bad_settings(), *CATALOG_CALLS]:
            try:
                call()
            except ThinwireError as error:
                file, line = raised_at(error)
                found.setdefault((file, line), (name, f"{type(error).__name__}: {error}"))
    return found


def compare(name, text):
    path = GOLDEN / name
    if os.environ.get("THINWIRE_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text, "texts changed: THINWIRE_WRITE_GOLDEN=1, then read the diff"


def test_every_error_of_the_catalog_is_in_the_golden_file():
    found = collect_catalog()
    lines = []
    for file in sorted({file for file, _ in found}):
        lines += [f"## {file}\n"] if file else ["## built-in checks\n"]
        lines += [f"{name}\n{indent(text)}\n" for (where, _), (name, text) in sorted(found.items()) if where == file]
    compare("catalog_errors.txt", "\n".join(lines))


def test_no_error_of_the_catalog_is_left_out():
    seen = set(collect_catalog())
    left = [
        f"{file}:{lines.start}"
        for package in PACKAGES
        for file, lines in raises_of(package)
        if not any((file, line) in seen for line in lines)
    ]
    assert not left, "add an input that raises it to tests/helpers/bad_input.py"


def indent(text):
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def test_every_error_of_the_command_line_is_in_the_golden_file(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    lines = []
    for words in COMMAND_LINES:
        try:
            code = main(words)
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr().err.replace(str(tmp_path), "FOLDER")
        said = re.sub(r"(?s)^usage: .*?(?=thinwire[\w -]*: error)", "", said)
        said = re.sub(r"\(choose from .*?\)", lambda found: found[0].replace("'", ""), said)  # Python 3.12 quotes them
        assert code == 2, (words, said)
        lines.append(f"thinwire {' '.join(words)}\n{indent(said)}\n")
    compare("cli_errors.txt", "\n".join(lines))


@pytest.mark.parametrize("name", ["catalog_errors.txt", "cli_errors.txt"])
def test_no_error_speaks_of_persons(name):
    words = re.findall(r"\b(?:who|whom|nobody|everybody|somebody|anybody)\b", (GOLDEN / name).read_text(), re.I)
    assert not words
