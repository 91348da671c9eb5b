"""Who may write what: an exchanger's objects, hooks and meters have methods for it; residuals belong to memories."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import thinwire
from thinwire import Exchanger, TensorSpec, parse

ROOT = Path(thinwire.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
OWNED = {
    "exchanger",
    "exchangers",
    "compressed",
    "plain",
    "hook",
    "driver",
    "rounds",
    "_memories",
    "_planning",
    "_step",
}


def owner_of(node):
    """The last name before the attribute: `exchanger` in `self.rounds.exchanger.clock` and in `exchangers[0].clock`."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def targets_of(node):
    if isinstance(node, ast.Assign):
        yield from node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target
    elif isinstance(node, ast.Delete):
        yield from node.targets


def written(source, owners):
    """ "line: owner.attribute` of every assignment to an attribute of such an object."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and owner_of(node.func) == "setattr" and owner_of(node.args[0]) in owners:
            yield f"{node.lineno}: setattr({ast.unparse(node.args[0])}, ...)"
        for target in targets_of(node):
            for one in ast.walk(target):
                stored = isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store | ast.Del)
                if stored and owner_of(one.value) in owners:
                    yield f"{node.lineno}: {ast.unparse(one)}"


def test_the_reader_sees_every_kind_of_write():
    source = """
self.rounds.exchanger.clock = now
exchangers[0].lr = 1.0
counted, driver.meter = driver.meter, looked
handle.exchanger.adapting_s += 1
hook.before += [1]
setattr(exchanger, "lr", 1)
exchanger = Exchanger()
self.exchanger = 3
exchanger.importance["w"] = w
"""
    assert [text.partition(":")[0] for text in written(source, OWNED)] == ["2", "3", "4", "5", "6", "7"]


def test_nothing_outside_writes_to_an_exchanger_a_hook_or_a_driver():
    outside = [path for path in FILES if path.relative_to(ROOT).parts[0] != "exchange"]
    found = {str(path.relative_to(ROOT)): list(written(path.read_text(), OWNED)) for path in outside}
    assert not {path: lines for path, lines in found.items() if lines}, "give it as an argument, or by a method"


def test_an_exchanger_refuses_to_be_written_to():
    exchanger = Exchanger([TensorSpec("w", (4,))], parse("ef(topk(k=1))"))
    names = [name for name in dir(Exchanger) if isinstance(getattr(Exchanger, name), property)]
    assert {"states", "plan", "plans", "lr", "adapting_s", "skipped_steps", "importance", "controller"} <= set(names)
    for name in (*names, "clock", "watch", "waiting"):
        with pytest.raises(AttributeError):
            setattr(exchanger, name, None)
    with pytest.raises(TypeError):
        exchanger.states["w"] = None


def uses_of_residual(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr == "residual":
            yield node.lineno
        elif isinstance(node, ast.Call) and owner_of(node.func) in ("getattr", "hasattr", "setattr", "_replace"):
            named = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            if "residual" in (*named, *(keyword.arg for keyword in node.keywords)):
                yield node.lineno


def test_only_memories_know_residuals():
    outside = [path for path in FILES if path.relative_to(ROOT).parts[0] != "feedback"]
    found = {str(path.relative_to(ROOT)): list(uses_of_residual(path.read_text())) for path in outside}
    assert not {path: lines for path, lines in found.items() if lines and path != "core/memories.py"}
