"""Private names of torch are read in one file; other private names are read where they are defined."""

import ast
from pathlib import Path

import pytest

import thinwire

ROOT = Path(thinwire.__file__).parent
THE_ONE = ROOT / "core" / "torch_private.py"
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != THE_ONE]

NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace", "_field_defaults"}  # public, whatever they are called
PYTHON = {"sys._getframe", "os._exit"}  # documented
LIGHTNING = {"_forward_module"}  # recognised, never relied on
READERS = {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "__setattr__"}


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined_in(tree):
    """Private names that this file gives to something of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            is_own = isinstance(node, ast.Name) or (
                isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            )
            if is_own:
                yield node.id if isinstance(node, ast.Name) else node.attr


def attributes_read(tree):
    """(text, name, whether the owner is the object or class itself) of each private attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            text = ast.unparse(node)
            yield text, node.attr, text.startswith(("self._", "cls._", "super()._"))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in READERS:
            for argument in node.args:
                if (
                    isinstance(argument, ast.Constant)
                    and isinstance(argument.value, str)
                    and is_private(argument.value)
                ):
                    yield ast.unparse(node), argument.value, False


def private_imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (n for n in names if n.startswith("torch") and any(map(is_private, n.split("."))))


def offences(files):
    """Private names that are not our own: by file, what is read."""
    trees = {path: ast.parse(path.read_text()) for path in files}
    anywhere = {name for tree in trees.values() for name in defined_in(tree)}
    beside = {}  # by folder, what its files define: objects of one package may know one another
    for path, tree in trees.items():
        beside.setdefault(path.parent, set()).update(defined_in(tree))
    for path, tree in trees.items():
        yield from ((path, name) for name in private_imports(tree))
        for text, name, is_own in attributes_read(tree):
            known = anywhere if is_own else beside[path.parent]
            if name in NAMED_TUPLES | LIGHTNING or text in PYTHON or name.startswith("_thinwire_"):
                continue
            if name not in known:
                yield path, text


def test_one_file_alone_reads_private_names_of_torch():
    assert not [f"{path.relative_to(ROOT)}: {text}" for path, text in offences(FILES)]


@pytest.mark.parametrize(
    "line",
    [
        "from torch._C._distributed_c10d import GradBucket",
        "import torch._dynamo",
        "from torch.utils import _pytree",
        "used = model.reducer._get_local_used_map()",
        "torch._C._current_graph_task_id()",
        "inside = model._orig_mod",
        "hooks = getattr(model, '_comm_hooks', [])",
        "known = hasattr(model, '_comm_hooks')",
        "model._comm_hooks = []",
        "class Own(Optimizer):\n    def step(self):\n        return self._step_count",
    ],
)
def test_a_private_name_of_torch_in_another_file_is_found(line, tmp_path):
    file = tmp_path / "file.py"
    file.write_text(line)
    assert list(offences([file]))


def test_own_private_names_are_no_offence(tmp_path):
    file = tmp_path / "file.py"
    file.write_text(
        "class Own:\n    def __init__(self):\n        self._x = 1\n    def same(self, other):\n"
        "        return self._x == other._x and state._replace(a=1) and getattr(model, '_thinwire_slot', None)"
    )
    assert not list(offences([file]))
