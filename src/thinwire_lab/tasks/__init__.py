"""Tasks: a model and its data, by name. Each is loaded when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinwire.core import CompositionError, Plugins, did_you_mean

if TYPE_CHECKING:
    from .base import Task

GROUP = "thinwire.tasks"
METHODS = ("prepare", "learner", "describe", "smoothness")  # of a task; see base.Task

TASKS: dict[str, str | type[Any]] = {  # a class, or where it is: "module:class", from here or in full
    "logistic": ".logistic_task:LogisticTask",
    "digits": ".digits:Digits",
    "cifar10": ".images:Cifar10",
    "cifar100": ".images:Cifar100",
    "image_folder": ".folders:ImageFolder",
    "wikitext2": ".text:WikiText2",
    "wikitext103": ".text:WikiText103",
    "shakespeare": ".text:Shakespeare",
}


def register_task(name: str, cls: Any = None) -> Any:
    """Give a task a name, so that a TOML file can ask for it: a call, or a decorator of the class.

    Workers are processes of their own: they know the task if an entry point of the group thinwire.tasks names it, or if
    its class is in a module that they can import.

    Args:
        name: what `task.name` of a config is, such as "my_task".
        cls: a frozen dataclass that keeps the protocol `Task`; its fields are settings. Without it, a decorator.

    Raises:
        CompositionError: the name is taken or empty, or the class is no task.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise CompositionError(f"register_task: a name is an identifier such as 'my_task', got {name!r}")
    if cls is None:
        return lambda cls: register_task(name, cls)
    if not isinstance(cls, type) or not is_dataclass(cls):
        raise CompositionError(
            f"register_task: {name!r} needs a dataclass, whose fields are the task's settings, got {cls!r}"
        )
    lacking = [method for method in METHODS if not hasattr(cls, method)]
    if lacking:
        raise CompositionError(f"register_task: {cls.__name__} is no task: it lacks {', '.join(lacking)}")
    old = TASKS.get(name, cls)
    if old is not cls and (isinstance(old, str) or _path(old) != _path(cls)):
        raise CompositionError(
            f"register_task: the name {name!r} is taken by {old if isinstance(old, str) else _path(old)}"
        )
    TASKS[name] = cls
    return cls


PLUGINS = Plugins(GROUP, register_task)


def make_task(name: str, settings: Mapping[str, Any] | None = None, data: str | Path | None = None) -> Task:
    """The task of that name. data: the folder its data are in; see experiments/data/where.py for what else is tried."""
    made = _find(name)
    known = [setting.name for setting in fields(made) if setting.name != "folder"]
    settings = dict(settings or {})
    for key in settings:
        if key not in known:
            raise CompositionError(
                f"{name}: no setting is called {key!r}; there are {', '.join(known)}{did_you_mean(key, known)}"
            )
    if len(known) < len(fields(made)):  # its data are in a folder
        settings["folder"] = None if data is None else str(data)
    return made(**settings)  # type: ignore[no-any-return]


def _find(name: str) -> type[Any]:
    if name not in TASKS:
        PLUGINS.load_named(name)
    if name not in TASKS:
        PLUGINS.load_all()
        raise CompositionError(f"task must be one of {', '.join(TASKS)}, got {name!r}{did_you_mean(name, TASKS)}")
    found = TASKS[name]
    if isinstance(found, str):
        module, kind = found.split(":")
        found = getattr(importlib.import_module(module, __name__), kind)
    return found


def _path(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
