"""Tasks: a model and its data, by name. Each is loaded when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core import CompositionError, did_you_mean

if TYPE_CHECKING:
    from .base import Task

TASKS: dict[str, str] = {
    "logistic": "logistic_task:LogisticTask",
    "digits": "digits:Digits",
    "cifar10": "images:Cifar10",
    "cifar100": "images:Cifar100",
    "image_folder": "folders:ImageFolder",
    "wikitext2": "text:WikiText2",
    "wikitext103": "text:WikiText103",
    "shakespeare": "text:Shakespeare",
}


def make_task(name: str, settings: Mapping[str, Any] | None = None, data: str | Path | None = None) -> Task:
    """The task of that name. data: the folder its data are in; see experiments/data/where.py for what else is tried."""
    if name not in TASKS:
        raise CompositionError(f"task must be one of {', '.join(TASKS)}, got {name!r}{did_you_mean(name, TASKS)}")
    module, kind = TASKS[name].split(":")
    made = getattr(importlib.import_module(f"{__name__}.{module}"), kind)
    known = [setting.name for setting in fields(made) if setting.name != "folder"]
    settings = dict(settings or {})
    for key in settings:
        if key not in known:
            raise CompositionError(
                f"{name}: no setting is called {key!r}; there are {', '.join(known)}{did_you_mean(key, known)}"
            )
    return made(**settings, folder=None if data is None else str(data))  # type: ignore[no-any-return]
