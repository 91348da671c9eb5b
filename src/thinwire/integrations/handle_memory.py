"""The memories of a handle: their exchangers, the texts of their compositions, and their place in a stored state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..catalog import parse, part_text
from ..core import Aggregator
from ..exchange import Exchanger
from .state_gather import State

Texts = Mapping[str, str]
KINDS = ("composition", "moments")  # keys under which a stored state has the texts of its compositions


class HandleMemory(NamedTuple):
    """One exchanger of a handle, and where its memory is in a stored state."""

    kind: str  # one of KINDS
    texts: Texts  # of its composition
    exchanger: Exchanger
    path: tuple[str, ...]  # in one rank's state
    parse_texts: Callable[[Texts], Mapping[str, Aggregator[Any]]]  # from such texts to an aggregator for each layer

    def find_in(self, own: State) -> Any:
        """The memory in one rank's stored state; None if there is none."""
        stored: Any = own
        for key in self.path:
            stored = stored.get(key) if isinstance(stored, Mapping) else None
        return stored

    def replace_in(self, own: State, memory: State) -> dict[str, Any]:
        """One rank's stored state with another memory."""
        return _replace_at(own, self.path, memory)

    def build_empty(self) -> Exchanger:
        """An exchanger of the same composition without any memory."""
        present = self.exchanger
        return Exchanger(list(present.layers.values()), present.aggregators, seed=present.seed)


def _replace_at(own: State, path: Sequence[str], memory: State) -> dict[str, Any]:
    if not path:
        return {**own, **memory}
    return {**own, path[0]: _replace_at(own.get(path[0], {}), path[1:], memory)}


def describe_memory(exchanger: Exchanger, *path: str) -> HandleMemory:
    """The memory of a composition with a stored text for each layer."""
    texts = {name: part_text(rule) for name, rule in exchanger.aggregators.items()}
    return HandleMemory("composition", texts, exchanger, path, _parse_texts)


def _parse_texts(texts: Texts) -> dict[str, Aggregator[Any]]:
    return {name: parse(text) for name, text in texts.items()}
