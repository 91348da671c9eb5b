"""LayerMemories: the aggregators of one worker's layers, their states, and the importance of coordinates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..core import (
    Aggregator,
    CheckpointError,
    Context,
    LayerMemory,
    TensorSpec,
    derive_key,
    flatten_state,
    give_back_to,
    list_some,
    mean_state,
    merge_memories,
    parts_of,
    restore_state,
    take_over,
    takes_importance,
    target_of,
    with_importance,
)
from ..importance import LayerImportance

_INIT_KEY = "init"  # frozen: makes the random bits


class LayerMemories:
    """States by layer name after the settled steps; an open step changes them when it is settled."""

    def __init__(self, layers: Sequence[TensorSpec], aggregators: Mapping[str, Aggregator[Any]], seed: int) -> None:
        self.layers = {spec.name: spec for spec in layers}
        self.aggregators = aggregators
        self.states = {
            spec.name: aggregators[spec.name].init(spec, derive_key(seed, _INIT_KEY, spec.name)) for spec in layers
        }
        self._takes_importance = any(
            takes_importance(part) for whole in aggregators.values() for part in parts_of(whole)
        )
        self.importance = LayerImportance(self.layers, self._takes_importance)

    @property
    def has_importance(self) -> bool:
        """Whether a layer has an importance, so that layers with equal parts may still differ."""
        return len(self.importance) > 0

    def aggregator(self, name: str) -> Aggregator[Any]:
        """The layer's aggregator, with its importance if there is one."""
        aggregator = self.aggregators[name]
        has_importance = self._takes_importance and name in self.importance
        return with_importance(aggregator, self.importance[name]) if has_importance else aggregator

    def target(self, name: str, tensor: Tensor, ctx: Context) -> Tensor:
        """What the layer would send now."""
        return target_of(self.aggregators[name], tensor.detach(), self.layers[name], self.states[name], ctx)

    def commit(self, pending: Mapping[str, Any]) -> None:
        """Replace the states of these layers."""
        self.states |= pending

    def give_back(self, tensors: Mapping[str, Tensor], ctx: Context) -> None:
        """Return these layers to their memories after the server rejected their message."""
        for name, tensor in tensors.items():
            aggregator, spec = self.aggregators[name], self.layers[name]
            self.states[name] = give_back_to(aggregator, tensor, spec, self.states[name], ctx)

    def restart(self, old: LayerMemories, change: Callable[[Any, Any], Any]) -> None:
        """Continue from `old`: each state becomes `change(old state, initial state)`."""
        self.states = {name: change(old.states[name], fresh) for name, fresh in self.states.items()}

    def take_over(self, old: LayerMemories, ctx: Context) -> list[str]:
        """Adopt the states of another composition; returns one text for each kind of state that was dropped.

        `old.importance` becomes the importance of this one.
        """
        new = {name: LayerMemory(part, self.states[name]) for name, part in self.aggregators.items()}
        before = {name: LayerMemory(part, old.states[name]) for name, part in old.aggregators.items()}
        self.states, dropped = take_over(self.layers, new, before, ctx)
        if lost := old.importance.rebind(self.layers, self.importance.is_used):
            dropped.append(f"the importance of {list_some(lost)} is dropped: no part of the new composition takes one")
        self.importance = old.importance
        return dropped

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """States and importance, as stored."""
        return {
            "layers": {name: flatten_state(state) for name, state in self.states.items()},
            "importance": dict(self.importance),
        }

    def check_layers(self, stored: Mapping[str, Any]) -> None:
        """Raise CheckpointError unless the stored layers are those of this model."""
        if unmatched := sorted(stored["layers"].keys() ^ self.layers.keys()):
            raise CheckpointError(f"the stored layers differ from this model's in {', '.join(unmatched)}")

    def restored(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """The stored states by layer name; one that does not match the composition is a CheckpointError."""
        self.check_layers(stored)
        return {name: self._restored(name, flat) for name, flat in stored["layers"].items()}

    def install(self, states: dict[str, Any], importance: Mapping[str, Tensor]) -> None:
        """Use restored states and a stored importance; an invalid importance changes nothing."""
        self.importance.replace_all(importance)
        self.states = states

    def load_matching(self, stored: Mapping[str, Any]) -> list[str]:
        """Load the stored states that match; returns one text for each that was dropped."""
        dropped = []
        for name, flat in stored["layers"].items():
            if name not in self.layers:
                dropped += [f"{name} is not in this model; its state is dropped"] if flat else []
                continue
            try:
                self.states[name] = self._restored(name, flat)
            except CheckpointError as error:
                dropped.append(f"{error}; it is initialized again")
        for name, w in stored["importance"].items() if self.importance.is_used else ():
            if name in self.layers and w.numel() == self.layers[name].numel:
                self.importance[name] = w
        return dropped

    def merge_states(self, stored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One stored state for each rank of a new world, out of those of all old ranks."""
        for one in stored:
            self.check_layers(one)
        layers = {name: self._merge_layer(name, [one["layers"][name] for one in stored]) for name in self.layers}
        names = stored[0]["importance"]
        return {
            "layers": layers,
            "importance": {n: mean_state([one["importance"][n] for one in stored]) for n in names},
        }

    def _merge_layer(self, name: str, flats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        states = [self._restored(name, flat) for flat in flats]
        return flatten_state(merge_memories(self.aggregators[name], states, self.layers[name]))

    def _restored(self, name: str, flat: Mapping[str, Any]) -> Any:
        try:
            return restore_state(self.states[name], flat)
        except CheckpointError as error:
            raise CheckpointError(f"{name}: {error}") from None
