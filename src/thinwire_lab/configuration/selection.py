"""Select methods and groups of an experiment: `--methods` and `--groups` of `thinwire run`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..tables import ConfigError
from .config import Experiment, Method, RunGroup


@dataclass(frozen=True)
class Selection:
    """The methods and groups to run. Empty: all.

    Args:
        methods: labels, or the parts of labels before a colon.
        groups: texts; a group is selected if its title contains one of them.
    """

    methods: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.methods or self.groups)

    def to_arguments(self) -> list[str]:
        """The same as arguments of the command line."""
        options = (("--methods", self.methods), ("--groups", self.groups))
        return [word for option, names in options if names for word in (option, *(f'"{name}"' for name in names))]

    def apply_to(self, experiment: Experiment) -> Experiment:
        """The experiment with the selected methods and groups only.

        Raises:
            ConfigError: a name matches nothing, or no selected method runs in a selected group.
        """
        methods = tuple(method for method in experiment.methods if not self.methods or self._selects(method))
        groups = tuple(group for group in experiment.groups if not self.groups or self._selects_group(group))
        known = {name for method in experiment.methods for name in _names_of(method)}
        _check_known("--methods", [n for n in self.methods if n not in known], [m.label for m in experiment.methods])
        titles = [group.title for group in experiment.groups]
        unknown = [text for text in self.groups if not any(text in title for title in titles)]
        _check_known("--groups", unknown, titles)
        kept = {method.label for method in methods}
        narrowed = [replace(g, methods=tuple(label for label in g.methods if label in kept)) for g in groups]
        selected = [new for new, old in zip(narrowed, groups, strict=True) if new.methods or not old.methods]
        if not selected:
            raise ConfigError(
                f"--methods, --groups: no method of {sorted(kept)} runs in the groups {[g.title for g in groups]}"
            )
        return replace(experiment, methods=methods, groups=tuple(selected))

    def _selects(self, method: Method) -> bool:
        return any(name in self.methods for name in _names_of(method))

    def _selects_group(self, group: RunGroup) -> bool:
        return any(text in group.title for text in self.groups)


def _names_of(method: Method) -> tuple[str, str]:
    """The whole label and its part before a colon."""
    return method.label, method.label.partition(":")[0]


def _check_known(option: str, unknown: list[str], known: list[str]) -> None:
    if unknown:
        raise ConfigError(f"{option}: the experiment has no {unknown[0]!r}; it has {known}")
