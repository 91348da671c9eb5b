"""The rooms of the house and who may know whom, read off the imports."""

import ast
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
    {"sync", "moments", "integrations", "planner", "describe", "testing"},
    {"api"},
    {"testbed"},
    {"experiments"},
    {"bench"},
    {"cli"},
    {"__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(STOREYS) for room in rooms}


def room_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(path):
    """Rooms of this package that a file imports, wherever in the file."""
    here = ("thinwire", *path.relative_to(ROOT).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else ()
            target = (*base, *(node.module.split(".") if node.module else ()))
            if target[:1] == ("thinwire",):
                yield from [target[1]] if len(target) > 1 else [a.name for a in node.names if a.name in LEVEL]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "thinwire" and len(parts) > 1:
                    yield parts[1]


FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    room = room_of(path)
    assert room in LEVEL, f"{room} is no room of the house; see STOREYS"
    for other in imported_rooms(path):
        assert other == room or LEVEL[other] < LEVEL[room], f"{room} must not import {other}"


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
