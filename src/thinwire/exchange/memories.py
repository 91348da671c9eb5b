"""LayerMemories: the aggregators of one worker's layers, what they remember, and the importance of coordinates."""

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


class LayerMemories:
    """States by layer name, of settled steps. What an open step would change is not here before it is settled."""

    def __init__(self, layers: Sequence[TensorSpec], aggregators: Mapping[str, Aggregator[Any]], seed: int) -> None:
        self.layers = {spec.name: spec for spec in layers}
        self.aggregators = aggregators
        self.states = {
            spec.name: aggregators[spec.name].init(spec, derive_key(seed, "init", spec.name)) for spec in layers
        }
        wanted = any(takes_importance(part) for rule in aggregators.values() for part in parts_of(rule))
        self._takes_importance = wanted
        self.importance = LayerImportance(self.layers, wanted)

    def aggregator(self, name: str) -> Aggregator[Any]:
        """The layer's aggregator, told its importance if there is one."""
        aggregator = self.aggregators[name]
        has_importance = self._takes_importance and name in self.importance
        return with_importance(aggregator, self.importance[name]) if has_importance else aggregator

    def target(self, name: str, tensor: Tensor, ctx: Context) -> Tensor:
        """What the layer would send now."""
        return target_of(self.aggregators[name], tensor.detach(), self.layers[name], self.states[name], ctx)

    def commit(self, pending: Mapping[str, Any]) -> None:
        self.states |= pending

    def give_back(self, tensors: Mapping[str, Tensor], ctx: Context) -> None:
        """The message of these layers was refused: what it said waits for the next one."""
        for name, tensor in tensors.items():
            aggregator, spec = self.aggregators[name], self.layers[name]
            self.states[name] = give_back_to(aggregator, tensor, spec, self.states[name], ctx)

    def restart(self, old: LayerMemories, change: Callable[[Any, Any], Any]) -> None:
        """Go on from `old`, layer by layer with what `change` makes of its state and of ours, which is fresh."""
        self.states = {name: change(old.states[name], fresh) for name, fresh in self.states.items()}

    def take_over(self, old: LayerMemories, ctx: Context) -> list[str]:
        """Go on with another composition's memories, as far as there is a place for them; what is dropped, in words.

        Holders of `old.importance` hold ours then.
        """
        ours = {name: LayerMemory(rule, self.states[name]) for name, rule in self.aggregators.items()}
        theirs = {name: LayerMemory(rule, old.states[name]) for name, rule in old.aggregators.items()}
        self.states, dropped = take_over(self.layers, ours, theirs, ctx)
        if lost := old.importance.serve(self.layers, self.importance.wanted):
            dropped.append(f"the importance of {list_some(lost)} is dropped: no part of the new composition takes one")
        self.importance = old.importance
        return dropped

    # Stored

    def state_dict(self) -> dict[str, Any]:
        return {
            "layers": {name: flatten_state(state) for name, state in self.states.items()},
            "importance": dict(self.importance),
        }

    def check_layers(self, stored: Mapping[str, Any]) -> None:
        if odd := sorted(stored["layers"].keys() ^ self.layers.keys()):
            raise CheckpointError(f"stored layers differ from this model's in {', '.join(odd)}")

    def restored(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """States by layer out of stored ones; what does not fit is a CheckpointError."""
        self.check_layers(stored)
        return {name: self._restored(name, flat) for name, flat in stored["layers"].items()}

    def install(self, states: dict[str, Any], importance: Mapping[str, Tensor]) -> None:
        """An importance that is refused changes nothing."""
        self.importance.replace_all(importance)
        self.states = states

    def load_what_fits(self, stored: Mapping[str, Any]) -> list[str]:
        """What is stored for other layers, or does not fit, in words."""
        dropped = []
        for name, flat in stored["layers"].items():
            if name not in self.layers:
                dropped += [f"{name} is not in this model: its memory is dropped"] if flat else []
                continue
            try:
                self.states[name] = self._restored(name, flat)
            except CheckpointError as error:
                dropped.append(f"{error}: it begins anew")
        for name, w in stored["importance"].items() if self.importance.wanted else ():
            if name in self.layers and w.numel() == self.layers[name].numel:
                self.importance[name] = w
        return dropped

    def merged(self, stored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One rank's stored memories out of those of a world of another size: mean residuals lose nothing."""
        for one in stored:
            self.check_layers(one)
        layers = {name: self._merged(name, [one["layers"][name] for one in stored]) for name in self.layers}
        names = stored[0]["importance"]
        return {
            "layers": layers,
            "importance": {n: mean_state([one["importance"][n] for one in stored]) for n in names},
        }

    def _merged(self, name: str, flats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        states = [self._restored(name, flat) for flat in flats]
        return flatten_state(merge_memories(self.aggregators[name], states, self.layers[name]))

    def _restored(self, name: str, flat: Mapping[str, Any]) -> Any:
        try:
            return restore_state(self.states[name], flat)
        except CheckpointError as error:
            raise CheckpointError(f"{name}: {error}") from None
