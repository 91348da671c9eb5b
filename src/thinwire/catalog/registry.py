"""The registry of parts: name, class, kind, and settings for tables and contract suites."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, overload

from ..core import CompositionError, Plugins
from .kinds import PLURALS, check_kind, check_settings, find_kind

C = TypeVar("C", bound=type)

GROUP = "thinwire.parts"
RESERVED = ("local", "moments", "none", "true", "false")  # words of composition texts that are not parts


class Registration(NamedTuple):
    """One part. Settings are texts, as between the parentheses: 'density=0.1, values="bf16"'."""

    name: str
    cls: type[Any]
    kind: str  # a key of PLURALS
    typical: tuple[str, ...] = ()  # settings that tables show; none: the part without settings
    examples: tuple[str, ...] = ()  # settings that contract suites run with


class Registry:
    """Parts by name, and names by class. Parts of other packages are loaded from their entry points on demand."""

    def __init__(self) -> None:
        self.registrations: dict[str, Registration] = {}
        self.names: dict[type[Any], str] = {}
        self.plugins = Plugins(GROUP, self._accept)

    def add(self, registration: Registration) -> None:
        """Add a part. A class that is defined again, as in a notebook, replaces the old one."""
        for old in (
            self.registrations.get(registration.name),
            self.registrations.get(self.names.get(registration.cls, "")),
        ):
            if old is None:
                continue
            if old.name != registration.name:
                raise CompositionError(
                    f"register: {_path(registration.cls)} is registered as {old.name!r} already, got "
                    f"{registration.name!r}; a class has one name, so that its text is the same on all ranks"
                )
            if _path(old.cls) != _path(registration.cls):
                raise CompositionError(
                    f"register: the name {registration.name!r} is taken by {_path(old.cls)}; give "
                    f"{_path(registration.cls)} another name, such as 'my_{registration.name}'"
                )
            del self.names[old.cls]
        self.registrations[registration.name] = registration
        self.names[registration.cls] = registration.name

    def find(self, name: str) -> Registration | None:
        """Return the part of that name; entry points are loaded if it is not registered yet."""
        if name not in self.registrations:
            self.plugins.load_named(name)
        return self.registrations.get(name)

    def name_of(self, cls: type[Any]) -> str | None:
        """Return the name of a class, also if its entry point was not loaded yet: texts must be equal on all ranks."""
        if cls not in self.names:
            self.plugins.load_package(cls.__module__.partition(".")[0])
        return self.names.get(cls)

    def load_all(self) -> None:
        """Load all parts of other packages, for tables and suggestions."""
        self.plugins.load_all()

    def restore(self, registrations: Sequence[Registration]) -> None:
        """Keep these parts only, and read the entry points of other packages again."""
        self.registrations.clear()
        self.names.clear()
        self.registrations.update({registration.name: registration for registration in registrations})
        self.names.update({registration.cls: registration.name for registration in registrations})
        self.plugins.reset()

    def _accept(self, name: str, cls: Any) -> None:
        if name not in self.registrations or self.registrations[name].cls is not cls:
            register(name, cls)


REGISTRY = Registry()


class Table(Mapping[str, type[Any]]):
    """A live view of the registered parts of one kind, or of all: name -> class."""

    def __init__(self, kind: str | None = None) -> None:
        self.kind = kind

    def __getitem__(self, name: str) -> type[Any]:
        registration = REGISTRY.registrations[name]
        if self.kind not in (None, registration.kind):
            raise KeyError(name)
        return registration.cls

    def __iter__(self) -> Iterator[str]:
        return (
            registration.name
            for registration in list(REGISTRY.registrations.values())
            if self.kind in (None, registration.kind)
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)


PARTS = Table()
KINDS: dict[str, Mapping[str, type[Any]]] = {plural: Table(kind) for kind, plural in PLURALS.items()}
COMPRESSORS, AGGREGATORS, MEMORIES, TOPOLOGIES, CONTROLLERS = KINDS.values()
NAMES: Mapping[type[Any], str] = MappingProxyType(REGISTRY.names)


@overload
def register(
    name: str, cls: C, *, kind: str | None = None, typical: str | Sequence[str] = (), examples: Sequence[str] = ()
) -> C: ...


@overload
def register(
    name: str, cls: None = None, *, kind: str | None = None, typical: str | Sequence[str] = (),
    examples: Sequence[str] = (),
) -> Callable[[C], C]: ...  # fmt: skip


def register(
    name: str,
    cls: Any = None,
    *,
    kind: str | None = None,
    typical: str | Sequence[str] = (),
    examples: Sequence[str] = (),
) -> Any:
    """Register a class under a name for composition texts. Works as a function and as a class decorator.

    Args:
        name: an identifier that no other part has, such as "my_topk".
        cls: a frozen dataclass; its fields are the settings. Without it, a decorator is returned.
        kind: "compressor", "aggregator", "memory", "topology" or "controller"; found from its methods if left out.
        typical: settings for tables, such as "density=0.01"; several make several rows.
        examples: settings for contract suites, such as ["density=0.1", "k=3"].

    Returns:
        The class, or the decorator.

    Raises:
        CompositionError: the name is taken or not an identifier, the class implements no protocol of a part, or a text
            cannot express a setting.
    """
    _check_name(name)
    if cls is None:
        return lambda cls: register(name, cls, kind=kind, typical=typical, examples=examples)
    if not isinstance(cls, type):
        raise CompositionError(f"register: {name!r} needs a class, got {cls!r}; pass the class, not an object")
    found = find_kind(cls) if kind is None else check_kind(cls, kind)
    check_settings(cls)
    shown = (typical,) if isinstance(typical, str) else tuple(typical)
    REGISTRY.add(Registration(name, cls, found, shown, tuple(examples)))
    return cls


def _check_name(name: Any) -> None:
    if isinstance(name, type):
        raise CompositionError(
            f"register: expected a name, got the class {name.__name__}; write @register('{name.__name__.lower()}')"
        )
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise CompositionError(f"register: the name must be an identifier such as 'my_topk', got {name!r}")
    if name.lower() in RESERVED:
        raise CompositionError(f"register: the name {name!r} is reserved in composition texts; choose another")


def _path(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
