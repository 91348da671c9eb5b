"""Exchanger: the exchange of one step for all layers of one worker, with their states and their controller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor

from ..core import (
    Aggregator,
    CheckpointError,
    Controller,
    LayerMenus,
    LayerObservation,
    Plan,
    Program,
    TensorSpec,
    World,
    require_keys,
)
from ..importance import LayerImportance
from .memories import LayerMemories
from .planning import Planning
from .step import StepExchange

STORED = ("plan", "plans", "controller", "layers", "importance", "skipped_steps", "lr")


class Exchanger:
    """The layers of one worker with their aggregators, states and controller, all keyed by layer name.

    It sends nothing: its methods are programs for a driver. A step is `begin`, one `exchange` for each group of layers
    (each layer once), and `settle`; `run_step` is all three.

    New states are pending until `settle`. If any rank has a NaN or an infinity in an exchange, all ranks learn it with
    the answers, get NaN for all layers of that exchange, and no state changes; the caller must also drop what earlier
    exchanges of that step returned (`settle` returns False). The same holds if an exchange raised. Where ranks exchange
    with neighbors only (gossip), the neighbors go on without that rank; it alone gets NaN, and keeps the state that its
    neighbors have recorded for it.

    Args:
        layers: specs of the layers that may be exchanged; names must differ.
        aggregator: one for all layers, or one for each by name.
        controller: chooses for all layers that have a menu; by default the controller of each composition does.
        seed: of all randomness.
        wait_for_flattened: `flatten` waits for all layers of a step; False: it flattens those of each exchange.
    """

    __slots__ = ("__weakref__", "_memories", "_planning", "_step")  # no other attribute can be set

    def __init__(
        self,
        layers: Sequence[TensorSpec],
        aggregator: Aggregator[Any] | Mapping[str, Aggregator[Any]],
        controller: Controller[Any] | None = None,
        seed: int = 0,
        wait_for_flattened: bool = True,
    ) -> None:
        names = [spec.name for spec in layers]
        if len(set(names)) != len(names):
            raise ValueError(f"Exchanger: layer names must differ, got {names}")
        aggregators = dict(aggregator) if isinstance(aggregator, Mapping) else dict.fromkeys(names, aggregator)
        if unmatched := sorted(aggregators.keys() ^ set(names)):
            raise ValueError(f"Exchanger: each layer needs one aggregator; layers or aggregators alone: {unmatched}")
        self._planning = Planning(layers, aggregators, controller, seed)
        self._memories = LayerMemories(layers, aggregators, seed)
        self._step = StepExchange(self._memories, self._planning, wait_for_flattened)

    # A step

    def begin(self, step: int, world: World, lr: float | None = None) -> Program[None]:
        """Begin a step, before its first exchange: settle the last step, then let the controller change the plan.

        lr: the learning rate, for controllers; None keeps the one given last.
        """
        self.settle()
        yield from self._planning.begin(step, world, lr)

    def exchange(
        self, tensors: Mapping[str, Tensor], step: int, world: World, into: Mapping[str, Tensor] | None = None
    ) -> Program[dict[str, Tensor]]:
        """Average these layers over all ranks.

        Args:
            tensors: by layer name; each layer once per step.
            step: the step that `begin` started.
            world: this rank and the number of ranks.
            into: tensors to write the averages to, also the exchanged ones themselves; undefined after an error.

        Returns:
            This rank's averages by layer name, in the types of their specs; flattened layers come with the last one.
        """
        return self._step.exchange(tensors, step, world, into)

    def send(self, tensors: Mapping[str, Tensor], step: int, world: World) -> Program[bool]:
        """Send these layers to a server, without a bad-step flag and without an average.

        Returns whether the tensors are finite. If not, zeros are sent, and the step will not be committed.
        """
        return self._step.send(tensors, step, world)

    def run_step(
        self, tensors: Mapping[str, Tensor], step: int, world: World, lr: float | None = None
    ) -> Program[dict[str, Tensor]]:
        """A whole step for all layers at once: `begin`, `exchange`, `settle`; returns the averages."""
        yield from self.begin(step, world, lr)
        values = yield from self.exchange(tensors, step, world)
        self.settle()
        return values

    def discard_pending(self, names: Iterable[str]) -> None:
        """Drop the pending states of these layers, as if they had not been exchanged in this step."""
        self._step.discard(names)

    def settle(self, good: bool = True) -> bool:
        """End the step: commit the pending states, or drop them if the step was bad on any rank. Sends nothing.

        If the step was bad on this rank and its neighbors went on, the state that they have recorded is committed, and
        the result is False. If an exchange raised, the step is dropped and not counted as skipped.

        Args:
            good: False if the caller knows that the step is bad for another reason; must be equal on all ranks.

        Returns:
            Whether the step was good.
        """
        return self._step.settle(good)

    def abandon(self) -> None:
        """Drop the open step, as if it had not begun. Sends nothing."""
        self._step.abandon()

    # Properties

    @property
    def layers(self) -> dict[str, TensorSpec]:
        """Specs by name."""
        return self._memories.layers

    @property
    def aggregators(self) -> Mapping[str, Aggregator[Any]]:
        """Aggregators by layer name."""
        return self._memories.aggregators

    @property
    def states(self) -> Mapping[str, Any]:
        """States by layer name after the settled steps."""
        return MappingProxyType(self._memories.states)

    @property
    def importance(self) -> LayerImportance:
        """The importance w by layer name, for parts such as `impk`. Each rank has its own; the default is w = 1.

        `exchanger.importance["conv1.weight"] = w` checks name, shape and numbers. It is stored with the states.
        """
        return self._memories.importance

    @property
    def seed(self) -> int:
        """The seed of all randomness."""
        return self._planning.seed

    @property
    def menus(self) -> LayerMenus:
        """The menus of the layers that have one."""
        return self._planning.menus

    @property
    def controller(self) -> Controller[Any]:
        """The controller, of all layers with a menu."""
        return self._planning.controller

    @property
    def controller_state(self) -> Any:
        """The state of the controller after the settled steps."""
        return self._planning.state

    @property
    def plan(self) -> Plan:
        """The plan in use."""
        return self._planning.plan

    @property
    def plans(self) -> list[tuple[int, Plan]]:
        """Every change of plan, with the first step that used it."""
        return self._planning.plans

    @property
    def lr(self) -> float | None:
        """The learning rate given last."""
        return self._planning.lr

    @property
    def adapting_s(self) -> float:
        """Seconds spent by the controller so far, waiting for other ranks included."""
        return self._planning.seconds

    @property
    def skipped_steps(self) -> int:
        """The number of bad steps."""
        return self._step.skipped

    @property
    def flattened_layers(self) -> list[str]:
        """Layers that wait for each other over several exchanges of a step, to be sent as one vector."""
        return self._step.flatten_buffer.names

    @property
    def is_order_free(self) -> bool:
        """Whether exchanges of a step may be under way at the same time."""
        return self._step.is_order_free

    def targets(self, tensors: Mapping[str, Tensor], world: World | None = None) -> dict[str, Tensor]:
        """What each layer would send now. world: only dgc's clipping depends on it; default: that of the last step."""
        ctx = self._planning.context(0, self._planning.world if world is None else world)
        return {name: self._memories.target(name, tensor, ctx) for name, tensor in tensors.items()}

    def controller_report(self) -> dict[str, Any]:
        """Changes of plan, seconds spent on this rank, and what the controller reports."""
        return self._planning.report()

    # Settings beside steps

    def set_clock(self, clock: Callable[[], float] | None) -> None:
        """Set the clock for controllers that choose by time. Without a clock, runs are reproducible."""
        self._planning.clock = clock

    def set_layer_callback(self, callback: Callable[[TensorSpec, LayerObservation], None] | None) -> None:
        """Set a function that is called for every exchanged layer."""
        self._planning.layer_callback = callback

    def set_adapting_s(self, seconds: float) -> None:
        """Set the seconds spent by the controller before, in a resumed run."""
        self._planning.seconds = seconds

    def give_back(self, tensors: Mapping[str, Tensor], step: int, world: World) -> None:
        """Return these layers to their memories after the server rejected their message, for the next message."""
        self._memories.give_back(tensors, self._planning.context(step, world))

    def restart(self, old: Exchanger, change: Callable[[Any, Any], Any]) -> None:
        """Continue from `old`: the state of each layer becomes `change(its old state, its initial state)`."""
        self._memories.restart(old._memories, change)

    def take_over(self, old: Exchanger, step: int, world: World) -> list[str]:
        """Continue from another composition; the controller, too, if nothing changed for it. Importance is moved.

        Returns:
            One text for each kind of state that could not be adopted and was dropped.
        """
        old.settle()
        dropped = self._memories.take_over(old._memories, self._planning.context(step, world))
        dropped += self._planning.take_over(old._planning)
        self._step.skipped = old.skipped_steps
        return dropped

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers, enough to resume with the same next step."""
        self.settle()
        numbers = {"skipped_steps": self.skipped_steps, "lr": self.lr or 0.0}  # 0: not given
        return {**self._planning.state_dict(), **self._memories.state_dict(), **numbers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a stored state.

        Raises:
            CheckpointError: a part of the state is missing or does not match this composition; nothing was changed.
        """
        require_keys(state, STORED, "an Exchanger")
        states, controller_state = self._memories.restored(state), self._planning.restored(state)
        self._memories.install(states, state["importance"])
        self._planning.install(controller_state, state)
        self._load_numbers(state)
        self._step.abandon()

    def load_matching(self, state: Mapping[str, Any]) -> list[str]:
        """Load what a stored state has for the layers of this model; returns one text for each item dropped."""
        require_keys(state, STORED, "an Exchanger")
        dropped = self._memories.load_matching(state)
        self._load_numbers(state)
        if state["layers"].keys() == self.layers.keys():
            try:
                self._planning.install(self._planning.restored(state), state)
            except CheckpointError as error:
                dropped.append(f"{error}; it is initialized again")
        return dropped

    def _load_numbers(self, state: Mapping[str, Any]) -> None:
        self._step.skipped = int(state["skipped_steps"])
        self._planning.load_lr(state)

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One state for each rank of a new world, out of the states of all old ranks; mean residuals lose nothing."""
        for state in states:
            require_keys(state, STORED, "an Exchanger")
        memories, controller = self._memories.merge_states(states), self._planning.resized_state(states[0])
        return {**states[0], **memories, "controller": controller}
