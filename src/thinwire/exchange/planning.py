"""Planning: the plan in use (which option of its menu each layer has), its controller, and the history of plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from ..controllers import report_controller, resize_state, resolve_controller
from ..core import (
    Aggregator,
    Capability,
    CheckpointError,
    Context,
    Controller,
    LayerObservation,
    Plan,
    Program,
    Reduced,
    TensorSpec,
    World,
    flatten_state,
    has,
    plans_from_tensors,
    plans_to_tensors,
    restore_state,
    with_step,
)

Target: TypeAlias = Callable[[str, Tensor, Context], Tensor]
LayerCallback: TypeAlias = Callable[[TensorSpec, LayerObservation], None]


class Planning:
    """The plan in use, its controller and its history. A bad step's changes of these are rolled back.

    lr: the learning rate given last. seconds: spent by the controller so far, waiting for other ranks included. clock:
    for controllers that choose by time; without one, runs are reproducible. layer_callback: called for each layer.
    """

    def __init__(
        self,
        layers: Sequence[TensorSpec],
        aggregators: Mapping[str, Aggregator[Any]],
        controller: Controller[Any] | None,
        seed: int,
    ) -> None:
        self.layers = {spec.name: spec for spec in layers}
        self.menus, self.controller = resolve_controller(layers, aggregators, controller)
        self.state: Any
        self.plan, self.state = self.controller.init(layers)
        self.plans: list[tuple[int, Plan]] = []  # every change, with the first step that used it
        self.seed, self.seconds = seed, 0.0
        self.lr: float | None = None
        self.clock: Callable[[], float] | None = None
        self.layer_callback: LayerCallback | None = None
        self.world = World(0, 1)  # of the last step
        self._observes = not has(self.controller, Capability.NEVER_OBSERVES)
        self._pending: Any = self.state  # with the observations of the open step
        self._began = 0.0  # of the open step's first exchange, by the clock
        self._before: tuple[Plan, Any, int] | None = None  # plan, state and number of plans to roll back to

    def context(self, step: int, world: World) -> Context:
        """The context of parts at a step."""
        return Context(step, world, self.seed, self.plan, self.lr, can_flatten=True)

    def begin(self, step: int, world: World, lr: float | None) -> Program[None]:
        """Let the controller change the plan."""
        self.lr = self.lr if lr is None else lr
        if not self.menus and not self._observes:
            self.world = world  # nothing to choose, and nothing to observe
            return
        began, before = time.perf_counter(), self.plan
        replan = self.controller.replan(self.plan, self.state, self.context(step, world))
        plan, state = yield from with_step(replan, step)
        self._before = (self.plan, self.state, len(self.plans))
        self.plan, self.state, self._pending, self.world = plan, state, state, world
        if self.plan != before:
            self.plans.append((step, self.plan))
        self.seconds += time.perf_counter() - began

    @property
    def has_begun(self) -> bool:
        """Whether there is something to commit or to roll back."""
        return self._before is not None

    @property
    def is_observed(self) -> bool:
        """Whether `observe` does anything."""
        return self.layer_callback is not None or self._observes

    def start_clock(self) -> None:
        """Record the begin of the first exchange of a step."""
        if self.clock is not None:
            self._began = self.clock()

    def observe(
        self,
        reduced: Mapping[str, Reduced[Any]],
        inputs: Mapping[str, Tensor],
        bucket: int,
        ctx: Context,
        target: Target,
    ) -> None:
        """Pass what became of these layers to the controller and to the callback."""
        if not self.is_observed:
            return
        began, state = time.perf_counter(), self._pending
        seconds = None if self.clock is None else self.clock() - self._began
        observations = {
            name: LayerObservation(inputs[name], out, partial(target, name, inputs[name], ctx), bucket, seconds)
            for name, out in reduced.items()
        }
        for name, observation in observations.items():
            state = self.controller.observe(self.layers[name], observation, state, ctx)
        self.seconds += time.perf_counter() - began
        if self.layer_callback is not None:
            for name, observation in observations.items():
                self.layer_callback(self.layers[name], observation)
        self._pending = state

    def commit(self) -> None:
        """Keep the plan and the observations of a good step."""
        self.state, self._before = self._pending, None

    def roll_back(self) -> None:
        """Restore plan, state and history as before the step."""
        if self._before is not None:
            self.plan, self.state, count = self._before
            del self.plans[count:]
        self._pending, self._before = self.state, None

    def take_over(self, old: Planning) -> list[str]:
        """Continue from another composition if nothing changed for the controller; returns texts about what is dropped.

        Learning rate, seconds and callback are taken over in any case.
        """
        dropped = []
        if self.controller == old.controller and self.plan.keys() == old.plan.keys():
            self.plan, self.state, self.plans = old.plan, old.state, old.plans
        elif flatten_state(old.state):
            dropped.append(f"what {type(old.controller).__name__} had observed is dropped; it is initialized again")
        self._pending = self.state
        self.lr, self.seconds, self.layer_callback = old.lr, old.seconds, old.layer_callback
        return dropped

    def report(self) -> dict[str, Any]:
        """Changes of plan, seconds spent on this rank, and what the controller reports."""
        own_report = report_controller(self.controller, self.state)
        return {"decisions": len(self.plans), **own_report, "changes": len(self.plans), "seconds": self.seconds}

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Plan, history and the controller's state, as stored."""
        return {
            "plan": dict(self.plan),
            "plans": plans_to_tensors(self.plans, sorted(self.layers)),
            "controller": flatten_state(self.state),
        }

    def install(self, state: Any, stored: Mapping[str, Any]) -> None:
        """Use a stored plan and history, and the controller state that `restored` made of it."""
        self.plans = plans_from_tensors(stored["plans"], sorted(self.layers))
        self.plan, self.state = dict(stored["plan"]), state
        self._pending, self._before = state, None

    def load_lr(self, stored: Mapping[str, Any]) -> None:
        """Use the stored learning rate."""
        self.lr = float(stored["lr"]) or None  # 0: not given

    def resized_state(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """The controller's stored state for a world of another size."""
        return flatten_state(resize_state(self.controller, self.restored(stored)))

    def restored(self, stored: Mapping[str, Any]) -> Any:
        """The stored controller state; one that does not match the controller is a CheckpointError."""
        try:
            return restore_state(self.state, stored["controller"])
        except CheckpointError as error:
            raise CheckpointError(f"controller: {error}") from None
