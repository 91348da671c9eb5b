"""Some of an experiment's methods and groups instead of all: `--methods` and `--groups` of `thinwire run`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..tables import ConfigError
from .config import Experiment, Method, RunGroup


@dataclass(frozen=True)
class Selection:
    """methods: labels, or what precedes a label's colon. groups: texts that a group's title contains. None: all."""

    methods: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.methods or self.groups)

    @property
    def words(self) -> list[str]:
        """As the command line has it."""
        chosen = (("--methods", self.methods), ("--groups", self.groups))
        return [word for option, names in chosen if names for word in (option, *(f'"{name}"' for name in names))]

    def of(self, experiment: Experiment) -> Experiment:
        methods = tuple(method for method in experiment.methods if not self.methods or self._names(method))
        groups = tuple(group for group in experiment.groups if not self.groups or self._contains(group))
        known = {name for method in experiment.methods for name in _names_of(method)}
        _refuse("--methods", [n for n in self.methods if n not in known], [m.label for m in experiment.methods])
        titles = [group.title for group in experiment.groups]
        _refuse("--groups", [text for text in self.groups if not any(text in title for title in titles)], titles)
        kept = {method.label for method in methods}
        narrowed = [replace(g, labels=tuple(label for label in g.labels if label in kept)) for g in groups]
        some = [new for new, old in zip(narrowed, groups, strict=True) if new.labels or not old.labels]
        if not some:
            raise ConfigError(f"--methods, --groups: none of {sorted(kept)} runs in {[g.title for g in groups]}")
        return replace(experiment, methods=methods, groups=tuple(some))

    def _names(self, method: Method) -> bool:
        return any(name in self.methods for name in _names_of(method))

    def _contains(self, group: RunGroup) -> bool:
        return any(text in group.title for text in self.groups)


def _names_of(method: Method) -> tuple[str, str]:
    return method.label, method.label.partition(":")[0]


def _refuse(option: str, unknown: list[str], known: list[str]) -> None:
    if unknown:
        raise ConfigError(f"{option}: {unknown[0]!r} is none of this experiment's; there are {known}")
