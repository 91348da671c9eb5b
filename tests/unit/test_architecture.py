"""The layers of packages and which may import which, read off the imports."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import thinwire

SRC = Path(thinwire.__file__).parents[1]
TESTS = Path(__file__).parents[1]

# each layer may import the layers above it; packages of one layer never import one another
LAYERS = [
    {"renamed"},  # no torch
    {"core"},
    {"kernels"},
    {"wire"},
    {"compressors", "importance", "aggregators", "feedback", "controllers", "topologies", "drivers"},
    {"exchange", "checkpoint"},
    {"catalog"},
    {"sync", "optimizer_state", "planner", "describe", "controller_report", "testing"},
    {"integrations", "serving"},
    {"api", "self_test"},
    {"moments"},  # a public namespace: names of optimizer_state and of api
    {"lab.tables", "lab.data", "lab.models", "lab.testbed"},
    {"lab.tasks"},
    {"lab.configuration"},
    {"lab.measuring"},
    {"lab.reporting", "lab.running"},
    {"lab.published"},
    {"lab.sources", "lab.bench"},
    {"cli"},
    {"__main__"},
]
PROGRAM = {"cli", "__main__"}
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}


def package_of(module):
    """The package of a module, given as a tuple of names: "core" of thinwire, "lab.tasks" of thinwire_lab."""
    return f"lab.{module[1]}" if module[0] == "thinwire_lab" else module[1]


def module_of(path):
    return path.relative_to(SRC).with_suffix("").parts


def imported_modules(path, at_import=False):
    """Modules that a file imports as tuples of names, wherever in the file, by a statement or by a text."""
    here = module_of(path)
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


MODULE = re.compile(r"thinwire(_lab)?(\.\w+)+(:\w+)?")  # a function for `run_ranks` is given as "thinwire.module:name"


def text_of(node, module_name):
    """A text as far as it is written in the source; the rest is "?"."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value, module_name) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return text_of(node.value, module_name)
    return module_name if isinstance(node, ast.Name) and node.id == "__name__" else "?"


def imported_packages(path, at_import=False):
    """Packages of ours that a file imports."""
    for target in imported_modules(path, at_import):
        if target[0] in ("thinwire", "thinwire_lab") and len(target) > 1:
            package = package_of(target)
            if package in LEVEL or len(target) > 2:
                yield package


FILES = [path for path in sorted(SRC.rglob("*.py")) if len(module_of(path)) > 2 or path.name != "__init__.py"]
PACKAGES = {path: package_of(module_of(path)) for path in FILES}


def is_laboratory(package):
    return package.startswith("lab.")


def test_imports_point_one_way():
    wrong = []
    for path, package in PACKAGES.items():
        assert package in LEVEL, f"{package} is no known package; see LAYERS"
        for other in imported_packages(path):
            assert other in LEVEL, f"{path} imports {other}, which is no known package; see LAYERS"
            if other != package and LEVEL[other] >= LEVEL[package] and not only_for_types(path, other):
                wrong.append(f"{path}: {package} must not import {other}")
    assert not wrong


def only_for_types(path, other):
    """In the laboratory, names for annotations may come from anywhere."""
    return is_laboratory(other) and other not in set(imported_packages(path, at_import=True)) and is_typing(path, other)


def is_typing(path, other):
    text = path.read_text()
    return "if TYPE_CHECKING:" in text and other.split(".")[1] in text.partition("if TYPE_CHECKING:")[2][:400]


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
    monkeypatch.setitem(globals(), "SRC", tmp_path)
    (tmp_path / "thinwire" / "sync").mkdir(parents=True)
    file = tmp_path / "thinwire" / "sync" / "worker.py"
    file.write_text(line)
    assert set(imported_packages(file)) == {"api"}


def test_moments_are_found_where_users_look_for_them():
    assert {"average", "send", "receive", "advise"} <= set(thinwire.moments.__all__) <= set(dir(thinwire.moments))
    code = "from thinwire.{} import *\nfrom thinwire.moments import average, send, receive\nassert callable(average)"
    for first in ("moments", "optimizer_state", "sync"):  # whatever was loaded before
        loaded_after(code.format(first))


def test_the_library_never_imports_the_laboratory():
    """In whole files, functions included; also not by a module's name in a text."""
    library = [path for path, package in PACKAGES.items() if not is_laboratory(package) and package not in PROGRAM]
    found = {path: set(imported_packages(path)) for path in [*library, SRC / "thinwire" / "__init__.py"]}
    assert len(library) > 200 and not [path for path, packages in found.items() if any(map(is_laboratory, packages))]


def test_the_program_imports_the_laboratory_inside_functions_only():
    for path, package in PACKAGES.items():
        if package in PROGRAM:
            assert not any(map(is_laboratory, imported_packages(path, at_import=True))), path.name


def test_the_library_does_not_import_its_contract_suites():
    users = [
        path for path, package in PACKAGES.items() if package != "testing" and "testing" in imported_packages(path)
    ]
    assert not users, "thinwire.testing needs pytest and hypothesis, which only tests have"


def test_only_drivers_and_integrations_know_torch_distributed():
    free = {"drivers", "integrations", "lab.bench"}
    assert not [p for p, package in PACKAGES.items() if package not in free and "torch.distributed" in p.read_text()]


def test_nothing_is_unpickled():
    words = {"pickle", "eval", "exec", "all_gather_object", "broadcast_object_list", "rpc"}
    for path in FILES:
        text = path.read_text()
        nodes = list(ast.walk(ast.parse(text)))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        assert not (names | attributes) & words, path
        assert "torch.load" not in text and "torch.save" not in text, path


def test_files_stay_small():
    assert not files_longer_than(300, FILES)
    assert not files_longer_than(400, TESTS.rglob("*.py"))


def files_longer_than(max_lines, paths):
    lengths = {str(path): len(path.read_text().splitlines()) for path in paths}
    return {path: lines for path, lines in lengths.items() if lines > max_lines}


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
