"""Exchanger: the layers of one worker, their aggregator, their controller and their memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..controllers import explained, who_chooses
from ..core import (
    Aggregator,
    Capability,
    Context,
    Controller,
    Plan,
    Program,
    ProtocolError,
    Reduced,
    Seen,
    TensorSpec,
    Waiting,
    World,
    all_finite,
    derive_key,
    fuse_flagged,
    has,
    narrow,
    parts_of,
    stamped,
    takes_importance,
    target_of,
    weighed,
)
from ..importance import LayerImportance
from .stored import Stored

log = logging.getLogger("thinwire")


class Exchanger(Stored):
    """The only object with memory, keyed by layer name. It sends nothing: its methods are programs for a driver.

    A step is `begin`, one `exchange` for each group of layers (each layer once), `settle`; `round` is all three.
    What a step would change in the memory is pending until `settle`. If any rank had a NaN or an infinity, all
    ranks learn it with the answers of that exchange, get NaN for all its layers, and no memory changes; what earlier
    exchanges of that step gave must be dropped, too (`settle` says False). Where ranks hear their partners only
    (gossip), these go on without that rank; it alone gets NaN, and keeps the memory that its partners believe it has.
    """

    def __init__(
        self,
        layers: Sequence[TensorSpec],
        aggregator: Aggregator[Any] | Mapping[str, Aggregator[Any]],
        controller: Controller[Any] | None = None,
        seed: int = 0,
    ) -> None:
        self.layers = {spec.name: spec for spec in layers}
        if len(self.layers) != len(layers):
            raise ValueError(f"Exchanger: layer names must differ, got {[spec.name for spec in layers]}")
        self.rules = dict(aggregator) if isinstance(aggregator, Mapping) else dict.fromkeys(self.layers, aggregator)
        if odd := sorted(self.rules.keys() ^ self.layers.keys()):
            raise ValueError(f"Exchanger: one aggregator per layer is needed; layers or aggregators alone: {odd}")
        self.choices, self.controller = who_chooses(layers, self.rules, controller)
        self.controller_state: Any
        self.seed = seed
        self.plan, self.controller_state = self.controller.init(layers)
        self.plans: list[tuple[int, Plan]] = []  # every change, with the step from which on it was in force
        self.adapting_s = 0.0  # what choosing has cost so far, waiting for others included; nothing depends on it
        self.lr: float | None = None  # a caller that knows the learning rate may say so
        self.clock: Callable[[], float] | None = None  # for those who choose by time; without one, runs repeat
        self.watch: Callable[[TensorSpec, Seen], None] | None = None  # told of every layer that was exchanged
        self.memory = {
            spec.name: self.rules[spec.name].init(spec, derive_key(seed, "init", spec.name)) for spec in layers
        }
        wanted = any(takes_importance(part) for rule in self.rules.values() for part in parts_of(rule))
        self._importance = LayerImportance(self.layers, wanted)
        self.skipped_steps = 0
        self.waiting = Waiting(self.rules, layers)  # layers that are exchanged as one, and so wait for the last of them
        self._pending: dict[str, Any] = {}
        self._seen: Any = self.controller_state
        self._buckets, self._began = 0, 0.0  # exchanges of this step, and when the first of them began
        self._before_step: tuple[Plan, Any, int] | None = None  # plan, controller, plans, to go back to if it is bad
        self._world = World(0, 1)  # of the last step
        self._bad = False  # for all ranks
        self._alone = False  # bad for this rank, while its partners go on without it

    @property
    def importance(self) -> LayerImportance:
        """w by layer, which parts like `impk` choose and weigh by; each rank has its own, and a layer without has ones.

        `exchanger.importance["conv1.weight"] = w` checks name, shape and numbers. It is stored with the memory.
        """
        return self._importance

    @importance.setter
    def importance(self, importance: Mapping[str, Tensor]) -> None:
        self._importance.replace_all(importance)

    def targets(self, tensors: Mapping[str, Tensor], world: World | None = None) -> dict[str, Tensor]:
        """What each layer would send now: what its memory, after the settled steps, gives to the part inside.

        world: only dgc's clip depends on its size; without, it is that of the last step.
        """
        ctx = self._context(0, self._world if world is None else world)
        return {name: self._target(name, tensor, ctx) for name, tensor in tensors.items()}

    def _target(self, name: str, tensor: Tensor, ctx: Context) -> Tensor:
        return target_of(self.rules[name], tensor.detach(), self.layers[name], self.memory[name], ctx)

    def begin(self, step: int, world: World) -> Program[None]:
        """Once per step, before its first exchange: settle the last step, then let the controller change the plan."""
        self.settle()
        began, before = time.perf_counter(), self.plan
        replan = self.controller.replan(self.plan, self.controller_state, self._context(step, world))
        plan, state = yield from stamped(replan, step)
        self._before_step = (self.plan, self.controller_state, len(self.plans))
        self.plan, self.controller_state, self._seen, self._world = plan, state, state, world
        if self.plan != before:
            self.plans.append((step, self.plan))
        self.adapting_s += time.perf_counter() - began

    def exchange(
        self, tensors: Mapping[str, Tensor], step: int, world: World, into: Mapping[str, Tensor] | None = None
    ) -> Program[dict[str, Tensor]]:
        """Every rank's view of the averages of these layers, in the types of their specs.

        into: tensors to write them to, which may be the very ones that are exchanged. Layers that are exchanged as one
        (`whole`) are answered with the last of them.
        """
        self._check(tensors, step)
        tensors, into = self.waiting.complete(tensors, into)
        if self.waiting.held and not tensors:
            return {}  # all of them wait: there is nothing to say yet
        ctx = self._context(step, world)
        if self.clock is not None and not self._buckets:
            self._began = self.clock()
        bucket, self._buckets = self._buckets, self._buckets + 1
        bad = [name for name, tensor in tensors.items() if not all_finite(tensor)]
        if bad:
            log.warning("step %d: rank %d has NaN or Inf in %s; the step is skipped", step, world.rank, ", ".join(bad))
        given = {name: torch.zeros_like(t) if bad else t.detach() for name, t in tensors.items()}
        programs = [self._rule(n).reduce(t, self.layers[n], self.memory[n], ctx) for n, t in given.items()]
        outs, anywhere_bad = yield from stamped(fuse_flagged(programs, bool(bad)), step)
        reduced = dict(zip(given, outs, strict=True))
        self._bad |= anywhere_bad
        alone = bool(bad) and not anywhere_bad
        self._alone |= alone
        seen = self._seen if alone else self._observed(reduced, given, bucket, ctx)
        values = self._values(reduced, given, into)  # may find what cannot be decoded: then nothing is pending
        kept = {name: self.memory[name] if out.heard is None else out.heard for name, out in reduced.items()}
        self._pending |= kept if alone else {name: out.state for name, out in reduced.items()}
        self._seen = seen
        return values

    def _observed(
        self, reduced: Mapping[str, Reduced[Any]], given: Mapping[str, Tensor], bucket: int, ctx: Context
    ) -> Any:
        """The controller's memory with what it saw of these layers."""
        if self.watch is None and has(self.controller, Capability.NEVER_OBSERVES):
            return self._seen  # nobody looks
        began, state = time.perf_counter(), self._seen
        seconds = None if self.clock is None else self.clock() - self._began
        all_seen = {
            name: Seen(given[name], out, partial(self._target, name, given[name], ctx), bucket, seconds)
            for name, out in reduced.items()
        }
        for name, seen in all_seen.items():
            state = self.controller.observe(self.layers[name], seen, state, ctx)
        self.adapting_s += time.perf_counter() - began
        if self.watch is not None:
            for name, seen in all_seen.items():
                self.watch(self.layers[name], seen)
        return state

    def _values(
        self, reduced: Mapping[str, Reduced[Any]], given: Mapping[str, Tensor], into: Mapping[str, Tensor] | None
    ) -> dict[str, Tensor]:
        bad = self._bad or self._alone
        if into is None:
            if bad:
                return {name: torch.full_like(tensor, float("nan")) for name, tensor in given.items()}
            return {name: narrow(out.value, self.layers[name].dtype) for name, out in reduced.items()}
        for name, out in reduced.items():
            if bad:
                into[name].fill_(float("nan"))
            else:
                out.write_value(into[name])
        return dict(into)

    def round(self, tensors: Mapping[str, Tensor], step: int, world: World) -> Program[dict[str, Tensor]]:
        """A whole step for all layers at once."""
        yield from self.begin(step, world)
        values = yield from self.exchange(tensors, step, world)
        self.settle()
        return values

    def keep_memory(self, names: Iterable[str]) -> None:
        """Let these layers' memory be as if they had not been exchanged in this step."""
        for name in names:
            self._pending.pop(name, None)

    def settle(self, good: bool = True) -> bool:
        """Commit the pending memory, or drop it if the step was bad anywhere; True if it was good. Local and silent.

        If it was bad here while partners went on, what they took from this rank is committed, and the answer is False.
        A caller that knows of something bad beside these layers says good=False; all ranks must say alike.
        """
        if missing := self.waiting.drop():
            log.warning("the step is skipped: what is exchanged as one waited in vain for %s", ", ".join(missing))
        good = good and not self._bad and not missing
        if good:
            self.memory |= self._pending
            self.controller_state = self._seen
            self._before_step = None  # what the controller has begun stays
        good = good and not self._alone
        self.skipped_steps += not good
        self.abandon()
        return good

    def abandon(self) -> None:
        """Forget the open step, as if it had not begun: it was bad, or one of its exchanges failed. Local, silent."""
        if self._before_step is not None:
            self.plan, self.controller_state, count = self._before_step
            del self.plans[count:]
        self._forget_step()

    def _forget_step(self) -> None:
        self.waiting.drop()
        self._seen = self.controller_state
        self._pending, self._bad, self._alone, self._buckets = {}, False, False, 0
        self._before_step = None

    def adaptation(self) -> dict[str, Any]:
        """What choosing has done: changes of plan, seconds it took here, and what the controller says of itself."""
        explanation = explained(self.controller, self.controller_state)
        return {"decisions": len(self.plans), **explanation, "changes": len(self.plans), "seconds": self.adapting_s}

    def _rule(self, name: str) -> Aggregator[Any]:
        rule = self.rules[name]
        return weighed(rule, self.importance[name]) if name in self._importance else rule

    def _context(self, step: int, world: World) -> Context:
        return Context(step, world, self.seed, self.plan, self.lr, together=True)

    def _check(self, tensors: Mapping[str, Tensor], step: int) -> None:
        for name, tensor in tensors.items():
            spec = self.layers.get(name)
            if spec is None:
                raise KeyError(f"Exchanger: no layer is called {name!r}; there are {list(self.layers)}")
            if (tuple(tensor.shape), tensor.dtype) != (spec.shape, spec.dtype):
                got = f"{tuple(tensor.shape)} {tensor.dtype}"
                raise ValueError(f"Exchanger: layer {name} is {spec.shape} {spec.dtype}, got {got}")
            if name in self._pending or name in self.waiting.held:
                raise ProtocolError(
                    f"step {step}: layer {name} was exchanged already; call begin() or settle() between"
                )
