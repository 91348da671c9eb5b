"""Parts and tasks of other packages: their class paths are stored in the config, so that processes can import them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from thinwire.catalog import REGISTRY, as_aggregator, register, to_text
from thinwire.catalog.tables import BUILT_IN
from thinwire.core import CompositionError
from thinwire.sync import Local, sync_text

from ..tables import ConfigError
from ..tasks import TASKS, register_task


def composition_text(part: Any, where: str) -> str:
    """The text of a part or of `Local` settings; unregistered classes are registered under their class names."""
    try:
        if isinstance(part, Local):
            return sync_text(part, lambda inside: composition_text(inside, where))
        aggregator = as_aggregator(part, where)
        for inside in _all_parts(aggregator):
            if REGISTRY.name_of(type(inside)) is None:
                register(type(inside).__name__, type(inside))
        return to_text(aggregator)
    except CompositionError as error:
        raise ConfigError(f"{where}: {error}") from error


def collect_class_paths(methods: Iterable[Local], tasks: Iterable[str]) -> dict[str, dict[str, str]]:
    """The tables `parts` and `tasks` of a config: name -> path of each class that is not built in."""
    own = {entry.cls for entry in BUILT_IN}
    classes = {type(part) for method in methods for part in _all_parts(method.composition)} - own
    names = {name: cls for cls in classes if (name := REGISTRY.name_of(cls)) is not None}
    registered = {name: cls for name in sorted(set(tasks)) if isinstance(cls := TASKS.get(name), type)}
    paths = {
        "parts": {name: get_class_path(names[name], "methods") for name in sorted(names)},
        "tasks": {name: get_class_path(cls, "task") for name, cls in registered.items()},
    }
    return {what: found for what, found in paths.items() if found}


def register_class_paths(parts: Mapping[str, Any], tasks: Mapping[str, Any]) -> None:
    """Register the classes of a config's tables `parts` and `tasks`: name -> "module:Class" or "FILE.py:Class"."""
    for what, paths in (("parts", parts), ("tasks", tasks)):
        if not isinstance(paths, Mapping):
            raise ConfigError(f'{what}: must be a table such as my_topk = "my_package.parts:MyTopK", got {paths!r}')
        for name, path in paths.items():
            cls = load_class(path, f"{what}: {name}")  # importing it may have registered it
            try:
                if what == "tasks":
                    register_task(name, cls)
                elif REGISTRY.names.get(cls) != name:
                    register(name, cls)
            except CompositionError as error:
                raise ConfigError(f"{what}: {name}: {error}") from error


def get_class_path(cls: type[Any], where: str) -> str:
    """The path "module:Class", or "FILE.py:Class" for a script; ConfigError if other processes cannot import it."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if "<" in cls.__qualname__ or file is None:
        raise ConfigError(
            f"{where}: {cls.__module__}.{cls.__qualname__} cannot be imported by worker processes; define it in a "
            "module or a file, outside of functions"
        )
    place = cls.__module__ if "." in cls.__module__ else str(Path(file).resolve())  # packages have relative imports
    return f"{place}:{cls.__qualname__}"


def load_class(path: Any, where: str) -> type[Any]:
    """Import the class with the path "module:Class" or "FILE.py:Class"."""
    place, _, name = path.rpartition(":") if isinstance(path, str) else ("", "", "")
    if not place or not name:
        raise ConfigError(f'{where}: must be a path such as "my_package.parts:MyTopK", got {path!r}')
    try:
        found: Any = import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        for step in name.split("."):
            found = getattr(found, step)
    except Exception as error:
        raise ConfigError(f"{where}: {path} cannot be imported: {type(error).__name__}: {error}") from error
    return found  # type: ignore[no-any-return]


def import_file(path: Path) -> Any:
    """Import a Python file as a module named after the file; the second time the same module is returned."""
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: must be a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look up the types of their fields there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _all_parts(part: Any) -> Iterator[Any]:
    """The part and all parts in its settings."""
    if isinstance(part, tuple):
        for each in part:
            yield from _all_parts(each)
    elif is_dataclass(part) and not isinstance(part, type):
        yield part
        for field in fields(part):
            if field.repr:
                yield from _all_parts(getattr(part, field.name))
    elif part is not None and not isinstance(part, str | int | float | dict):
        yield part  # not a dataclass: registering it raises an error that says what is needed
