"""The table of renamed names in CHANGELOG.md: old ones are refused with the new one, or do not exist any more."""

import ast
import re
from pathlib import Path

import pytest

import thinwire
from thinwire import renamed
from thinwire.catalog import PARTS, parse
from thinwire.cli.main import main
from thinwire.core import CompositionError
from thinwire.sync.texts import SyncReader
from thinwire_lab.configuration.config import Experiment
from thinwire_lab.tables import ConfigError

ROOT = Path(__file__).parents[2]
ROW = re.compile(
    r"^\| (part|setting|argument|flag|command|key|module|class|function) \| `([^`]+)` \| `([^`]+)` \|$", re.M
)
TABLES = {
    "part": renamed.PARTS,
    "setting": renamed.SETTINGS,
    "argument": renamed.ARGUMENTS,
    "flag": renamed.FLAGS,
    "command": renamed.COMMANDS,
    "key": renamed.KEYS,
}


def rows(*kinds):
    text = (ROOT / "CHANGELOG.md").read_text().partition("### Renamed")[2].partition("\n### ")[0]
    return [(kind, old, new) for kind, old, new in ROW.findall(text) if kind in kinds]


@pytest.mark.parametrize("kind", TABLES)
def test_the_changelog_has_the_rows_of_the_tables(kind):
    assert {old: new for _, old, new in rows(kind)} == TABLES[kind]


@pytest.mark.parametrize("old", renamed.PARTS)
def test_an_old_part_is_refused_with_the_new_name(old):
    with pytest.raises(CompositionError, match=f"{old!r} was renamed to {renamed.PARTS[old]!r}"):
        parse(f"{old}()")
    assert old not in PARTS


@pytest.mark.parametrize("old", renamed.SETTINGS)
def test_an_old_setting_is_refused_with_the_new_name(old):
    part, _, setting = old.partition(".")
    with pytest.raises(CompositionError, match=f"{setting!r} was renamed to {renamed.SETTINGS[old]!r}"):
        SyncReader(f"{part}({setting}=1)").part()


@pytest.mark.parametrize("old", renamed.ARGUMENTS)
def test_an_old_argument_is_refused_with_the_new_name(old):
    function, _, argument = old.rpartition(".")
    found = thinwire
    for name in function.split("."):
        found = getattr(found, name)
    with pytest.raises(TypeError, match=f"{argument!r} was renamed to {renamed.ARGUMENTS[old]!r}"):
        found(**{argument: 1})


@pytest.mark.parametrize("old", renamed.FLAGS)
def test_an_old_flag_is_refused_with_the_new_name(old, capsys):
    *command, flag = old.split()
    with pytest.raises(SystemExit) as ended:
        main([*command, flag, "1"])
    assert ended.value.code == 2
    assert f"{flag!r} was renamed to {renamed.FLAGS[old]!r}" in capsys.readouterr().err


@pytest.mark.parametrize("old", renamed.COMMANDS)
def test_an_old_command_is_refused_with_the_new_name(old, capsys):
    with pytest.raises(SystemExit) as ended:
        main([old])
    assert ended.value.code == 2
    assert f"{old!r} was renamed to {renamed.COMMANDS[old]!r}" in capsys.readouterr().err


@pytest.mark.parametrize("old", renamed.KEYS)
def test_an_old_key_of_a_laboratory_file_is_refused_with_the_new_name(old):
    *tables, key = old.split(".")
    config = {"task": {"name": "digits"}, "steps": 1, "methods": {"a": "dense()"}}
    inside = config
    for table in tables:
        inside = inside.setdefault(table, {})
    inside[key] = 1
    with pytest.raises(ConfigError, match=f"{key!r} was renamed to {renamed.KEYS[old]!r}"):
        Experiment.from_dict(config, "x")


def test_old_modules_classes_and_functions_are_gone():
    """A row names a module by its path in src without the ending, others by name, or by module:name if others have it."""
    modules, definitions = set(), set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        modules.add(module)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                definitions |= {node.name, f"{module}:{node.name}"}
    left = [old for _, old, _ in rows("module", "class", "function") if old in modules | definitions]
    assert not left
