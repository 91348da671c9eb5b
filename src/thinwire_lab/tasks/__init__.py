"""Tasks (a model and its data) by name. The module of a task is imported when the task is made."""

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

TASKS: dict[str, str | type[Any]] = {  # a class or its path, "module:class"
    "logistic": ".logistic_task:LogisticTask",
    "digits": ".digits:Digits",
    "cifar10": ".images:Cifar10",
    "cifar100": ".images:Cifar100",
    "image_folder": ".folders:ImageFolder",
    "wikitext2": ".text:WikiText2",
    "wikitext2_bytes": ".text:WikiText2Bytes",
    "wikitext103": ".text:WikiText103",
    "shakespeare": ".text:Shakespeare",
}


def register_task(name: str, cls: Any = None) -> Any:
    """Register a task under a name, so that config files can use it. A function, or a decorator of the class.

    Worker processes find the task through an entry point of the group thinwire.tasks, or by importing its module.

    Args:
        name: the value of `task.name` in a config, such as "my_task".
        cls: a frozen dataclass with the methods of the protocol `Task`; its fields are the settings. None: return a
            decorator.

    Raises:
        CompositionError: the name is taken or not an identifier, or the class is not a task.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise CompositionError(f"register_task: the name must be an identifier such as 'my_task', got {name!r}")
    if cls is None:
        return lambda cls: register_task(name, cls)
    if not isinstance(cls, type) or not is_dataclass(cls):
        raise CompositionError(
            f"register_task: {name!r} must be a dataclass with the task's settings as fields, got {cls!r}"
        )
    lacking = [method for method in METHODS if not hasattr(cls, method)]
    if lacking:
        raise CompositionError(f"register_task: {cls.__name__} is not a task: it has no {', '.join(lacking)}")
    old = TASKS.get(name, cls)
    if old is not cls and (isinstance(old, str) or _path(old) != _path(cls)):
        raise CompositionError(
            f"register_task: the name {name!r} is taken by {old if isinstance(old, str) else _path(old)}"
        )
    TASKS[name] = cls
    return cls


PLUGINS = Plugins(GROUP, register_task)


def make_task(name: str, settings: Mapping[str, Any] | None = None, data: str | Path | None = None) -> Task:
    """Make a task.

    Args:
        name: of the task.
        settings: fields of the task's class.
        data: folder of its data; None: see thinwire_lab.data.load.

    Raises:
        CompositionError: the name or a setting is wrong.
    """
    cls = _find(name)
    known = [setting.name for setting in fields(cls) if setting.name != "folder"]
    settings = dict(settings or {})
    for key in settings:
        if key not in known:
            raise CompositionError(
                f"{name}: there is no setting {key!r}{did_you_mean(key, known)}; there are {', '.join(known)}"
            )
    if len(known) < len(fields(cls)):  # it reads data from a folder
        settings["folder"] = None if data is None else str(data)
    return cls(**settings)  # type: ignore[no-any-return]


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
