"""What an exchanger remembers: stored, loaded, merged for another number of ranks, handed to another composition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..controllers import elsewhere
from ..core import (
    Aggregator,
    CheckpointError,
    Context,
    Controller,
    LayerMemory,
    Plan,
    Seen,
    TensorSpec,
    Waiting,
    World,
    flatten_state,
    give_back_to,
    mean_state,
    merge_memories,
    plans_of_tensors,
    plans_to_tensors,
    require_keys,
    restore_state,
    some_of,
    take_over,
)
from ..importance import LayerImportance

STORED = ("plan", "plans", "controller", "layers", "importance", "skipped_steps", "lr")


class Stored:
    """The memory of an `Exchanger` between steps."""

    layers: dict[str, TensorSpec]
    rules: dict[str, Aggregator[Any]]
    memory: dict[str, Any]
    controller: Controller[Any]
    controller_state: Any
    plan: Plan
    plans: list[tuple[int, Plan]]
    watch: Callable[[TensorSpec, Seen], None] | None
    waiting: Waiting
    skipped_steps: int
    adapting_s: float
    lr: float | None
    _importance: LayerImportance
    _seen: Any

    def settle(self, good: bool = True) -> bool:
        raise NotImplementedError

    def _forget_step(self) -> None:
        raise NotImplementedError

    def _context(self, step: int, world: World) -> Context:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers, enough to continue with the same next step."""
        self.settle()
        return {
            "plan": dict(self.plan),
            "plans": plans_to_tensors(self.plans, sorted(self.layers)),
            "controller": flatten_state(self.controller_state),
            "layers": {name: flatten_state(state) for name, state in self.memory.items()},
            "importance": dict(self._importance),
            "skipped_steps": self.skipped_steps,
            "lr": self.lr or 0.0,  # 0: not told
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a stored memory; what is missing or does not fit is a CheckpointError, and nothing changes."""
        self._check_layers(state)
        memory = {name: self._restored(name, flat) for name, flat in state["layers"].items()}
        controller_state = self._restored_controller(state)
        self._importance.replace_all(state["importance"])
        self.memory, self.controller_state = memory, controller_state
        self.plan = dict(state["plan"])
        self.plans = plans_of_tensors(state["plans"], sorted(self.layers))
        self.skipped_steps, self.lr = int(state["skipped_steps"]), float(state["lr"]) or None
        self._forget_step()
        self.waiting.drop()

    def _check_layers(self, state: Mapping[str, Any]) -> None:
        require_keys(state, STORED, "an Exchanger")
        if odd := sorted(state["layers"].keys() ^ self.layers.keys()):
            raise CheckpointError(f"stored layers differ from this model's in {', '.join(odd)}")

    def load_what_fits(self, state: Mapping[str, Any]) -> list[str]:
        """Take over what a stored state has for the layers here; what it has for others, or does not fit, in words."""
        require_keys(state, STORED, "an Exchanger")
        dropped = []
        for name, flat in state["layers"].items():
            if name not in self.layers:
                dropped += [f"{name} is not in this model: its memory is dropped"] if flat else []
                continue
            try:
                self.memory[name] = self._restored(name, flat)
            except CheckpointError as error:
                dropped.append(f"{error}: it begins anew")
        for name, w in state["importance"].items() if self._importance.wanted else ():
            if name in self.layers and w.numel() == self.layers[name].numel:
                self._importance[name] = w
        self.skipped_steps, self.lr = int(state["skipped_steps"]), float(state["lr"]) or None
        if state["layers"].keys() == self.layers.keys():
            try:
                self.controller_state = self._seen = self._restored_controller(state)
                self.plan, self.plans = dict(state["plan"]), plans_of_tensors(state["plans"], sorted(self.layers))
            except CheckpointError as error:
                dropped.append(f"{error}: it begins anew")
        return dropped

    def _restored(self, name: str, flat: Mapping[str, Any]) -> Any:
        try:
            return restore_state(self.memory[name], flat)
        except CheckpointError as error:
            raise CheckpointError(f"{name}: {error}") from None

    def _restored_controller(self, state: Mapping[str, Any]) -> Any:
        try:
            return restore_state(self.controller_state, state["controller"])
        except CheckpointError as error:
            raise CheckpointError(f"controller: {error}") from None

    def take_over(self, old: Stored, step: int, world: World) -> list[str]:
        """Go on with another composition's memory, as far as this one has a place for it; what is dropped, in words.

        A controller goes on where it was if nothing changed for it. Holders of `old._importance` hold ours then.
        """
        old.settle()
        ctx = self._context(step, world)
        ours = {name: LayerMemory(rule, self.memory[name]) for name, rule in self.rules.items()}
        theirs = {name: LayerMemory(rule, old.memory[name]) for name, rule in old.rules.items()}
        self.memory, dropped = take_over(self.layers, ours, theirs, ctx)
        if lost := old._importance.serve(self.layers, self._importance.wanted):
            dropped.append(f"the importance of {some_of(lost)} is dropped: no part of the new composition takes one")
        self._importance = old._importance
        if self.controller == old.controller and self.plan.keys() == old.plan.keys():
            self.plan, self.controller_state, self.plans = old.plan, old.controller_state, old.plans
        elif flatten_state(old.controller_state):
            dropped.append(f"what {type(old.controller).__name__} had seen is dropped: it begins anew")
        self._seen = self.controller_state
        self.skipped_steps, self.adapting_s, self.lr = old.skipped_steps, old.adapting_s, old.lr
        self.watch = old.watch
        return dropped

    def give_back(self, tensors: Mapping[str, Tensor], step: int, world: World) -> None:
        """The message of these layers was refused: what it said waits in their memories for the next one."""
        ctx = self._context(step, world)
        for name, tensor in tensors.items():
            self.memory[name] = give_back_to(self.rules[name], tensor, self.layers[name], self.memory[name], ctx)

    def restart(self, old: Stored, change: Callable[[Any, Any], Any]) -> None:
        """Go on from `old`, layer by layer with what `change` makes of its state and of ours, which is fresh."""
        self.memory = {name: change(old.memory[name], fresh) for name, fresh in self.memory.items()}

    def merged(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One rank's state out of those of a world of another size: mean residuals lose nothing."""
        for state in states:
            self._check_layers(state)
        layers = {name: self._merged_layer(name, [state["layers"][name] for state in states]) for name in self.layers}
        importance = {
            name: mean_state([state["importance"][name] for state in states]) for name in states[0]["importance"]
        }
        chooses = elsewhere(self.controller, self._restored_controller(states[0]))
        return {**states[0], "layers": layers, "importance": importance, "controller": flatten_state(chooses)}

    def _merged_layer(self, name: str, flats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        states = [self._restored(name, flat) for flat in flats]
        return flatten_state(merge_memories(self.rules[name], states, self.layers[name]))
