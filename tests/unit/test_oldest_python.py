"""What Python 3.10 lacks is not used without a fallback; ruff and mypy look at syntax and types, not at every name."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "tools", "examples")
OLDEST = (3, 10)

# modules, and names in modules, of Python 3.11 to 3.14
NAMES = """
tomllib annotationlib compression string.templatelib concurrent.interpreters pathlib.types
typing.Self typing.Never typing.LiteralString typing.assert_never typing.assert_type typing.reveal_type typing.Required
typing.NotRequired typing.Unpack typing.TypeVarTuple typing.dataclass_transform typing.get_overloads typing.clear_overloads
typing.override typing.TypeAliasType typing.ReadOnly typing.TypeIs typing.NoDefault typing.get_protocol_members
typing.is_protocol typing.evaluate_forward_ref collections.abc.Buffer types.get_original_bases types.CapsuleType
enum.StrEnum enum.ReprEnum enum.EnumCheck enum.FlagBoundary enum.verify enum.member enum.nonmember
enum.global_enum enum.EnumType enum.EnumDict datetime.UTC
asyncio.TaskGroup asyncio.timeout asyncio.timeout_at asyncio.Runner asyncio.Barrier asyncio.eager_task_factory
contextlib.chdir hashlib.file_digest operator.call operator.is_none operator.is_not_none math.cbrt math.exp2
math.sumprod math.fma itertools.batched copy.replace functools.Placeholder
random.binomialvariate statistics.kde statistics.kde_random inspect.getmembers_static
inspect.getasyncgenstate inspect.markcoroutinefunction locale.getencoding os.login_tty os.process_cpu_count
os.unshare os.setns sys.exception sys.monitoring sys.activate_stack_trampoline sys.getunicodeinternedsize
re.NOFLAG re.PatternError string.Template.get_identifiers threading.setprofile_all_threads threading.settrace_all_threads
warnings.deprecated queue.ShutDown uuid.uuid6 uuid.uuid7 uuid.uuid8 uuid.NIL
logging.getHandlerByName logging.getHandlerNames logging.getLevelNamesMapping
zipfile.Path.glob ast.compare
"""
NEWER = set(NAMES.split())
BUILTINS = {"ExceptionGroup", "BaseExceptionGroup", "PythonFinalizationError"}
METHODS = {"add_note", "enterContext", "enterClassContext", "is_junction"}
SETTINGS = {("TemporaryDirectory", "delete"), ("batched", "strict"), ("dataclass", "weakref_slot"), ("rmtree", "onexc")}


def newer_names(tree):
    """(line, name) of what this file uses and Python 3.10 has not, unless it asks for the version or catches the error."""
    guarded = {id(inner) for node in ast.walk(tree) if has_fallback(node) for inner in ast.walk(node)}
    known = modules_imported(tree)
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        for name in names_used(node, known):
            if name in NEWER or any(name.startswith(f"{newer}.") for newer in NEWER):
                yield node.lineno, name
        yield from ((node.lineno, name) for name in newer_forms(node))


def modules_imported(tree):
    """By the name in the file, the module that `import ...` gave it."""
    aliases = [a for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    return {a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in aliases}


def names_used(node, known):
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Attribute):
        head, dot, rest = ast.unparse(node).partition(".")
        if head in known:
            yield known[head] + dot + rest


def newer_forms(node):
    """Syntax, built-in names, methods and arguments."""
    if type(node).__name__ in ("TryStar", "TypeAlias", "TemplateStr"):
        yield type(node).__name__
    elif getattr(node, "type_params", None):
        yield f"{node.name}[...]"
    elif isinstance(node, ast.Name) and node.id in BUILTINS:
        yield node.id
    elif isinstance(node, ast.Call):
        called = ast.unparse(node.func).rpartition(".")[2]
        if isinstance(node.func, ast.Attribute) and called in METHODS:
            yield called
        yield from (f"{called}({k.arg}=...)" for k in node.keywords if (called, k.arg) in SETTINGS)


def has_fallback(node):
    if isinstance(node, ast.If):
        return "sys.version_info" in ast.unparse(node.test)
    catches = {"ImportError", "ModuleNotFoundError", "AttributeError"}
    handlers = getattr(node, "handlers", [])
    return any(
        handler.type is not None and catches & set(re.findall(r"\w+", ast.unparse(handler.type)))
        for handler in handlers
    )


def test_the_oldest_python_of_this_test_is_the_oldest_that_is_allowed():
    project = (ROOT / "pyproject.toml").read_text()
    oldest = ".".join(map(str, OLDEST))
    assert f'requires-python = ">={oldest}"' in project and f'python_version = "{oldest}"' in project
    assert f'target-version = "py{oldest.replace(".", "")}"' in project


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_newer_than_the_oldest_python_is_used_without_a_fallback(folder):
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(), feature_version=OLDEST)  # match statements are of 3.10
        found += [f"{path.relative_to(ROOT)}:{line}: {name}" for line, name in newer_names(tree)]
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        "import tomllib",
        "from typing import Self",
        "import datetime\nnow = datetime.datetime.now(datetime.UTC)",
        "import asyncio as a\na.TaskGroup()",
        "from enum import StrEnum",
        "import hashlib\nhashlib.file_digest(file, 'sha256')",
        "raise ExceptionGroup('two', errors)",
        "error.add_note('at step 3')",
        "import tempfile\ntempfile.TemporaryDirectory(delete=False)",
        "import itertools\nitertools.batched(range(9), 3)",
    ],
)
def test_a_newer_name_is_found(code):
    assert list(newer_names(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nif sys.version_info >= (3, 11):\n    import tomllib\nelse:\n    import tomli as tomllib",
        "try:\n    from typing import Self\nexcept ImportError:\n    Self = None",
        "import typing\nx: typing.Any = 1",
    ],
)
def test_a_newer_name_with_a_fallback_is_none(code):
    assert not list(newer_names(ast.parse(code)))
