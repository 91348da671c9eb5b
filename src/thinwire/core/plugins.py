"""Plugins: entry points of other packages, loaded on first use; errors name the package."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from .errors import PluginError, PluginWarning


class Plugins:
    """The entry points of a group.

    Args:
        group: the name of the entry point group.
        accept: called with the name and the object of an entry point; modules register their parts themselves.
    """

    def __init__(self, group: str, accept: Callable[[str, Any], object]) -> None:
        self.group, self.accept = group, accept
        self._lock = threading.RLock()  # a module may look up parts while it is imported
        self._waiting: list[EntryPoint] | None = None  # not loaded yet; None: the group was not read yet

    def load_named(self, name: str) -> None:
        """Load the entry point of this name; if there is none, all modules, which may register it.

        Raises:
            PluginError: the entry point of this name cannot be loaded. For others this is a warning.
        """
        with self._lock:
            waiting = self._read()
            named = [each for each in waiting if each.name == name]
            self._load([each for each in waiting if not each.attr] if not named else named[1:], strict=False)
            self._load(named[:1], strict=True)

    def load_package(self, package: str) -> None:
        """Load the entry points of one package."""
        with self._lock:
            self._load([each for each in self._read() if each.module.partition(".")[0] == package], strict=False)

    def load_all(self) -> None:
        """Load all entry points; one that cannot be loaded is a warning."""
        with self._lock:
            self._load(list(self._read()), strict=False)

    def reset(self) -> None:
        """Read the installed packages again at the next lookup."""
        with self._lock:
            self._waiting = None

    def _read(self) -> list[EntryPoint]:
        if self._waiting is None:
            points = {(each.name, each.value, _package(each)): each for each in entry_points(group=self.group)}
            self._waiting = [points[key] for key in sorted(points)]  # sorted, so that all ranks load in one order
        return self._waiting

    def _load(self, wanted: Iterable[EntryPoint], strict: bool) -> None:
        for each in wanted:
            waiting = self._read()
            if each not in waiting:
                continue
            waiting.remove(each)  # first, because loading it may look up its own name
            try:
                loaded = each.load()
                if not isinstance(loaded, ModuleType):
                    self.accept(each.name, loaded)
            except Exception as error:
                text = _describe_error(self.group, each, error)
                if strict:
                    waiting.append(each)  # so that the next lookup raises again
                    raise PluginError(text) from error
                warnings.warn(text, PluginWarning, stacklevel=4)


def _package(each: EntryPoint) -> str:
    return each.dist.name if each.dist is not None else each.module.partition(".")[0]


def _describe_error(group: str, each: EntryPoint, error: Exception) -> str:
    package = _package(each)
    return (
        f"package {package}: its entry point {each.name} = {each.value} (group {group}) cannot be used: "
        f"{type(error).__name__}: {error}; update or uninstall {package}"
    )
