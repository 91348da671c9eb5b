"""Entry points of other packages: one group, loaded lazily and once; a broken one is named with its package."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from .errors import PluginError, PluginWarning


class Plugins:
    """The entry points of a group. accept(name, class) takes what one gives; a module has registered it by itself."""

    def __init__(self, group: str, accept: Callable[[str, Any], object]) -> None:
        self.group, self.accept = group, accept
        self._lock = threading.RLock()  # a module may look up parts while it is loaded
        self._waiting: list[EntryPoint] | None = None  # not loaded yet; None: not read yet

    def load_named(self, name: str) -> None:
        """Load the entry point of that name, or else all modules, which may register it.

        Raises:
            PluginError: the entry point of that name cannot be loaded. Of others it is a warning.
        """
        with self._lock:
            waiting = self._read()
            named = [each for each in waiting if each.name == name]
            self._load([each for each in waiting if not each.attr] if not named else named[1:], strict=False)
            self._load(named[:1], strict=True)

    def load_package(self, package: str) -> None:
        """Load what points into one package, such as that of a class whose name is asked for."""
        with self._lock:
            self._load([each for each in self._read() if each.module.partition(".")[0] == package], strict=False)

    def load_all(self) -> None:
        """Load all; one that cannot be loaded is a warning."""
        with self._lock:
            self._load(list(self._read()), strict=False)

    def reset(self) -> None:
        """Read the installed packages again at the next look-up."""
        with self._lock:
            self._waiting = None

    def _read(self) -> list[EntryPoint]:
        if self._waiting is None:
            found = {(each.name, each.value, _package(each)): each for each in entry_points(group=self.group)}
            self._waiting = [found[key] for key in sorted(found)]  # sorted, so that all ranks load alike
        return self._waiting

    def _load(self, wanted: Iterable[EntryPoint], strict: bool) -> None:
        for each in wanted:
            waiting = self._read()
            if each not in waiting:
                continue
            waiting.remove(each)  # before it is loaded: it may look itself up
            try:
                found = each.load()
                if not isinstance(found, ModuleType):
                    self.accept(each.name, found)
            except Exception as error:
                text = _complaint(self.group, each, error)
                if strict:
                    waiting.append(each)  # the next look-up says it again
                    raise PluginError(text) from error
                warnings.warn(text, PluginWarning, stacklevel=4)


def _package(each: EntryPoint) -> str:
    return each.dist.name if each.dist is not None else each.module.partition(".")[0]


def _complaint(group: str, each: EntryPoint, error: Exception) -> str:
    package = _package(each)
    return (
        f"package {package}: its entry point {each.name} = {each.value} (group {group}) cannot be used: "
        f"{type(error).__name__}: {error}; update or uninstall {package}"
    )
