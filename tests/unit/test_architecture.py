"""The rooms of the house and who may know whom, read off the imports."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import thinwire

ROOT = Path(thinwire.__file__).parent

# each storey may import the storeys above it; rooms of one storey never import one another
STOREYS = [
    {"core"},
    {"kernels"},
    {"wire"},
    {"compressors", "importance", "aggregators", "feedback", "controllers", "topologies", "drivers"},
    {"exchange", "checkpoint"},
    {"catalog"},
    {"sync", "optimizer_state", "planner", "describe", "adaptation", "testing"},
    {"integrations", "serving"},
    {"api", "self_test"},
    {"moments"},  # a public namespace: names of optimizer_state and of api
    {"testbed"},
    {"experiments"},
    {"bench"},
    {"cli"},
    {"__main__"},
]
LABORATORY = {"experiments", "bench", "testbed"}
PROGRAM = {"cli", "__main__"}
LEVEL = {room: level for level, rooms in enumerate(STOREYS) for room in rooms}


def room_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_modules(path, at_import=False):
    """Modules that a file imports as tuples of names, wherever in the file, by a statement or by a text."""
    here = ("thinwire", *path.relative_to(ROOT).with_suffix("").parts)
    for node in nodes_of(ast.parse(path.read_text()), at_import):
        if isinstance(node, ast.ImportFrom):
            target = (*(here[: len(here) - node.level] if node.level else ()), *(node.module or "").split("."))
            names = [alias.name for alias in node.names] if not node.module else [""]  # from . import name
            yield from (tuple(part for part in (*target, name) if part) for name in names)
        elif isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func) and node.args:
            name = text_of(node.args[0], ".".join(here).removesuffix(".__init__"))
            above = len(name) - len(name.lstrip("."))
            yield (*(here[: len(here) - above] if above else ()), *name.lstrip(".").split("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
            yield tuple(node.value.partition(":")[0].split("."))


def nodes_of(tree, at_import):
    """All of them, or those that run when the file is imported: not in functions, not under `if TYPE_CHECKING`."""
    yield tree
    for node in ast.iter_child_nodes(tree):
        never = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not at_import or not (never or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            yield from nodes_of(node, at_import)


MODULE = re.compile(r"thinwire(\.\w+)+(:\w+)?")  # a function for `run_ranks` is given as "thinwire.module:name"


def text_of(node, module_name):
    """A text as far as it is written in the source; the rest is "?"."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value, module_name) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return text_of(node.value, module_name)
    return module_name if isinstance(node, ast.Name) and node.id == "__name__" else "?"


def imported_rooms(path, at_import=False):
    """Rooms of this package that a file imports."""
    for target in imported_modules(path, at_import):
        if target[0] == "thinwire" and len(target) > 1 and (target[1] in LEVEL or len(target) > 2):
            yield target[1]


FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    room = room_of(path)
    assert room in LEVEL, f"{room} is no room of the house; see STOREYS"
    for other in imported_rooms(path):
        assert other in LEVEL, f"{room} imports {other}, which is no room of the house"
        assert other == room or LEVEL[other] < LEVEL[room], f"{room} must not import {other}"


@pytest.mark.parametrize(
    "line",
    (
        "from ..api import attach",
        "from .. import api",
        "import thinwire.api",
        "from thinwire.api import attach",
        "def later():\n    from ..api import attach",
        'import_module("..api", __name__)',
        'importlib.import_module("thinwire.api")',
        'importlib.import_module(f"thinwire.api.{name}")',
        'run_ranks(2, "thinwire.api:attach")',
    ),
)
def test_every_way_to_import_is_seen(line, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "sync").mkdir()
    (tmp_path / "sync" / "worker.py").write_text(line)
    assert set(imported_rooms(tmp_path / "sync" / "worker.py")) == {"api"}


def test_moments_are_found_where_users_look_for_them():
    assert {"average", "send", "receive", "advise"} <= set(thinwire.moments.__all__) <= set(dir(thinwire.moments))
    code = "from thinwire.{} import *\nfrom thinwire.moments import average, send, receive\nassert callable(average)"
    for first in ("moments", "optimizer_state", "sync"):  # whatever was loaded before
        loaded_after(code.format(first))


def test_the_library_never_imports_the_laboratory():
    """In whole files, functions included; also not by a module's name in a text."""
    library = [path for path in FILES if room_of(path) not in LABORATORY | PROGRAM]
    found = {str(path): set(imported_rooms(path)) & LABORATORY for path in [*library, ROOT / "__init__.py"]}
    assert len(library) > 200 and not {path: rooms for path, rooms in found.items() if rooms}


def test_the_program_imports_the_laboratory_inside_functions_only():
    for path in FILES:
        if room_of(path) in PROGRAM:
            assert not set(imported_rooms(path, at_import=True)) & LABORATORY, path.name


def test_the_library_does_not_import_its_contract_suites():
    users = [path for path in FILES if room_of(path) != "testing" and "testing" in imported_rooms(path)]
    assert not users, "thinwire.testing needs pytest and hypothesis, which only tests have"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_drivers_and_integrations_know_torch_distributed(path):
    if room_of(path) in {"drivers", "integrations", "bench"}:
        return
    assert "torch.distributed" not in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_unpickled(path):
    names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    assert not (names | attributes) & {"pickle", "eval", "exec", "all_gather_object", "broadcast_object_list", "rpc"}
    assert "torch.load" not in path.read_text() and "torch.save" not in path.read_text()


def test_files_stay_small():
    long = {path: len(path.read_text().splitlines()) for path in FILES}
    assert not {str(path): lines for path, lines in long.items() if lines > 300}


def loaded_after(code):
    """The modules a fresh interpreter holds after running this."""
    code += "\nimport sys; print('modules:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    return set(done.stdout.rpartition("modules:")[2].split())


def test_import_needs_torch_and_numpy_only():
    """Even using every public name must not load the program's own libraries."""
    loaded = loaded_after("import thinwire\n[getattr(thinwire, name) for name in thinwire.__all__]")
    assert "torch" in loaded
    assert not loaded & {"rich", "jinja2", "matplotlib", "sklearn", "safetensors"}


def test_help_does_not_wait_for_torch():
    loaded = loaded_after(
        "from thinwire.cli.main import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
    )
    assert "thinwire.cli.main" in loaded and "torch" not in loaded
