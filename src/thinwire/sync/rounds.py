"""Local SGD (Stich, 2019) and DiLoCo (Douillard et al., 2023): the synchronization rounds of one rank.

After some local steps a round sends anchor - weights (or the weights), averages them, and applies the average to the
anchor with an outer optimizer: anchor <- outer(anchor, average), weights <- anchor.

A step of local training is: `before_step`, the worker's own optimizer, `after_step`. A caller that exchanges rounds in
the background calls the parts of `after_step` itself: `merge`, `full_average_if_due`, `start_rounds`, and
`exchange_round` for each round that was started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..aggregators import Dense
from ..catalog import without_compression
from ..core import (
    Aggregator,
    CheckpointError,
    Program,
    TensorSpec,
    World,
    all_finite,
    require_keys,
    topology_of,
)
from ..exchange import Exchanger
from .measures import consensus, drift, reduce_any
from .optimizers import Average, restore_momentum, store_momentum
from .pending_rounds import STORED, MergeResult, PendingRound, initial_steps, merge_round_states, split_fragments
from .policies import Every, StepInfo
from .settings import Local, check_composition


class LocalRounds:
    """The rounds of one rank. Reads and writes `parameters` in place.

    An anchor is the value of a layer after the last round, in float32 or wider. Where all ranks get the same average,
    all have the same anchors; under gossip each rank has its own. Memory: an anchor per layer, the state of the outer
    optimizer, pending rounds, and the state of the exchanger.

    Args:
        settings: of the rounds.
        parameters: the tensors to train, by name.
        compositions: one for each layer; None: settings.composition for all.
        buffers: tensors beside the parameters (running means) that are averaged uncompressed with the first fragment.
        seed: of random compressors.
        before_exchange: called with the tensors of each round before they are exchanged.
    """

    def __init__(
        self,
        settings: Local,
        parameters: Mapping[str, Tensor],
        compositions: Mapping[str, Aggregator[Any]] | None = None,
        buffers: Mapping[str, Tensor] | None = None,
        seed: int = 0,
        before_exchange: Callable[[Mapping[str, Tensor]], None] | None = None,
    ) -> None:
        self.settings, self.parameters, self.buffers = settings, dict(parameters), dict(buffers or {})
        self.tensors = {**self.parameters, **self.buffers}
        parts = compositions or dict.fromkeys(self.parameters, settings.composition)
        check_composition(settings.payload, parts.values())
        gossip = [part for part in parts.values() if topology_of(part) is not None]
        self.is_gossip = bool(gossip)
        layers = [TensorSpec.of(name, p) for name, p in self.parameters.items()]
        extra = [TensorSpec.of(name, b) for name, b in self.buffers.items()]
        exact = dict.fromkeys(self.buffers, without_compression(gossip[0] if gossip else Dense()))
        self.exchanger = Exchanger([*layers, *extra], {**parts, **exact}, seed=seed, wait_for_flattened=False)
        self._dense = Exchanger([*layers, *extra], Dense())
        self.fragments = split_fragments(layers, settings.num_fragments)
        period = settings.policy.period if isinstance(settings.policy, Every) else 1
        is_shifted = settings.overlap and not settings.policy.test_every
        self.steps_since_sync = initial_steps(period, len(self.fragments), is_shifted)
        self.pending: list[PendingRound] = []
        self.num_started = self.num_rounds = self.bad_in_a_row = self.num_full_averages = 0
        self.before_exchange = before_exchange
        self.anchor: dict[str, Tensor] = {}
        self.momentum: dict[str, Any] = {}  # states of the outer optimizer
        self.reset_anchors()

    def reset_anchors(self) -> None:
        """Start from the present weights, which are equal on all ranks."""
        dtypes = {name: layer.work_dtype for name, layer in self.exchanger.layers.items()}
        has_anchors = self.settings.payload != "gradients"
        self.anchor = {n: t.detach().to(dtypes[n], copy=True) for n, t in self.tensors.items() if has_anchors}
        outer = self.settings.outer_optimizer
        self.momentum = {n: outer.init(a) for n, a in self.anchor.items() if n in self.parameters}

    # A step

    def average_gradients(
        self, gradients: Mapping[str, Tensor], step: int, world: World, lr: float | None = None
    ) -> Program[dict[str, Tensor]]:
        """payload="gradients": the average of all ranks' gradients; empty if one had a NaN or an infinity."""
        yield from self.exchanger.begin(step, world, lr)
        values = yield from self.exchanger.exchange(gradients, step, world)
        good = self.exchanger.settle()
        self.num_rounds += 1
        self.bad_in_a_row = 0 if good else self.bad_in_a_row + 1
        return values if good else {}

    def before_step(self, step: int) -> list[MergeResult]:
        """With overlap, merge what was exchanged while this step's gradient was computed. Sends nothing."""
        return self.merge(step) if self.settings.overlap else []

    def after_step(self, step: int, world: World, lr: float | None = None) -> Program[list[MergeResult]]:
        """Everything that follows a local step. lr: its learning rate, if it is known."""
        merged = [] if self.settings.overlap else self.merge(step)
        yield from self.full_average_if_due(step, world)
        for pending in (yield from self.start_rounds(step, world, lr)):
            yield from self.exchange_round(pending, world)
        if self.settings.is_blocking:
            merged += self.merge(step)
            yield from self.full_average_if_due(step, world)
        return merged

    def start_rounds(self, step: int, world: World, lr: float | None = None) -> Program[list[PendingRound]]:
        """Start the rounds that are due, with the present weights and learning rate."""
        if self.settings.payload == "gradients":
            return []
        self.steps_since_sync = [steps + 1 for steps in self.steps_since_sync]
        policy, distance = self.settings.policy, None
        if policy.test_every and self.steps_since_sync[0] % policy.test_every == 0:
            distance = yield from drift(self.parameters, {n: self.anchor[n] for n in self.parameters}, step)
        busy = {pending.fragment for pending in self.pending}
        counts = enumerate(self.steps_since_sync)
        due = [at for at, steps in counts if at not in busy and policy.is_due(StepInfo(step, steps, distance))]
        merge_step = step + 1 if self.settings.overlap else step + self.settings.fragment_sync_delay
        started = [
            PendingRound(at, self.num_started + place, merge_step, self._round_payload(at), lr=lr)
            for place, at in enumerate(due)
        ]
        self.num_started += len(started)
        for at in due:
            self.steps_since_sync[at] = 0
        self.pending += started
        return started

    def exchange_round(self, pending: PendingRound, world: World) -> Program[None]:
        """Exchange the payload of a round; reads nothing that local steps change meanwhile.

        The exchanger counts rounds, not steps: with steps, some periods would meet the same neighbors of a rotating
        topology in every round.
        """
        if self.before_exchange is not None:
            self.before_exchange(pending.payload)
        yield from self.exchanger.begin(pending.number, world, pending.lr)
        values = yield from self.exchanger.exchange(pending.payload, pending.number, world)
        pending.good = self.exchanger.settle()
        pending.values, pending.payload = values, {}

    def merge(self, step: int) -> list[MergeResult]:
        """Merge the answered rounds that are due into the weights. Sends nothing."""
        due = [pending for pending in self.pending if pending.merge_step <= step and pending.values]
        self.pending = [pending for pending in self.pending if pending not in due]
        return [self._merge(pending) for pending in due]

    def full_average_if_due(self, step: int, world: World) -> Program[bool]:
        """The periodic full average, counted in rounds; True if there was one. Call it before rounds are started."""
        every = self.settings.full_average_every
        due = self.num_rounds // every if every else 0
        if due == self.num_full_averages:
            return False
        self.num_full_averages = due
        return (yield from self.full_average(step, world))

    def consensus(self, step: int, world: World) -> Program[float]:
        """Consensus distance of all ranks' weights: (1/n) sum |w_i - mean w|^2."""
        return (yield from consensus(self.parameters, world, step))

    def full_average(self, step: int, world: World) -> Program[bool]:
        """Set all ranks' weights to their exact mean; under gossip the anchors as well.

        Residuals and the state of the outer optimizer stay. False, and nothing is changed, if a rank's weights were not
        finite.
        """
        differ = self.is_gossip and bool(self.anchor)  # each rank has anchors of its own
        at_anchors = differ and (yield from self._all_at_anchors(step))
        means: dict[str, Tensor] = {}
        anchors = {name: anchor.to(self.tensors[name].dtype) for name, anchor in self.anchor.items()}
        if differ:
            anchors = means = yield from self._dense.run_step(anchors, step, world)
        if not at_anchors:  # else the means of the anchors are those of the weights
            means = yield from self._dense.run_step(self.tensors, step, world)
        if not all(map(all_finite, (*means.values(), *anchors.values()))):
            return False
        with torch.no_grad():
            for name, tensor in means.items():
                self.tensors[name].copy_(tensor)
            for name, anchor in anchors.items() if differ else ():
                self.anchor[name] = anchor.to(self.anchor[name].dtype, copy=True)
        return True

    def _all_at_anchors(self, step: int) -> Program[bool]:
        """Whether every rank's weights equal its anchors, as after a good round: then one average of two suffices.

        The ranks compare (4 bytes) only if the state that they share allows it; a rank that skipped a round differs.
        """
        has_moved = any(self.steps_since_sync) or self.pending or self.settings.fragment_update_alpha
        if has_moved or not self.num_rounds:
            return False
        differs = any(not torch.equal(self.tensors[n], a.to(self.tensors[n].dtype)) for n, a in self.anchor.items())
        return not (yield from reduce_any(differs, step))

    # What a round reads and writes

    def _round_payload(self, fragment: int) -> dict[str, Tensor]:
        names = self.fragments[fragment]
        payload = {name: self._payload(name) for name in names}
        return payload | ({n: b.detach().clone() for n, b in self.buffers.items()} if fragment == 0 else {})

    def _payload(self, name: str) -> Tensor:
        parameter, anchor = self.parameters[name].detach(), self.anchor[name]
        if self.settings.payload == "weights":
            return parameter.clone()
        start = anchor.to(parameter.dtype).to(anchor.dtype)  # the rounded anchor, from which the local steps started
        return (start - parameter.to(anchor.dtype)).to(parameter.dtype)

    def _merge(self, pending: PendingRound) -> MergeResult:
        names = self.fragments[pending.fragment]
        self.num_rounds += 1
        self.bad_in_a_row = 0 if pending.good else self.bad_in_a_row + 1
        if not pending.good:
            return MergeResult(names, False, self._roll_back_if_bad())
        with torch.no_grad():
            for name in names:
                self._merge_layer(name, pending.values[name])
            for name in pending.values.keys() - set(names):
                self.buffers[name].copy_(pending.values[name])
                self.anchor[name] = pending.values[name].to(self.anchor[name], copy=True)  # states may have the old one
        return MergeResult(names, True, False)

    def _merge_layer(self, name: str, value: Tensor) -> None:
        anchor, outer, parameter = self.anchor[name], self.settings.outer_optimizer, self.parameters[name]
        value = value.to(anchor.dtype)
        if self.settings.payload == "weights" and isinstance(outer, Average):
            new, momentum = value.clone(), self.momentum[name]
        else:
            delta = anchor - value if self.settings.payload == "weights" else value
            new, momentum = outer.step(anchor, delta, self.momentum[name])
        self.anchor[name], self.momentum[name] = new, momentum
        alpha = self.settings.fragment_update_alpha
        parameter.copy_(alpha * parameter.to(new.dtype) + (1 - alpha) * new if alpha else new)

    def _roll_back_if_bad(self) -> bool:
        """After a skipped round: a rank with non-finite weights resets them to its anchors; others keep theirs.

        Their next delta contains all changes since the last good round, so nothing is lost.
        """
        if all(all_finite(tensor.detach()) for tensor in self.tensors.values()):
            return False
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(self.anchor[name])
        return True

    # State

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume with the same next step, also within a period. All rounds must be answered."""
        return {
            "exchanger": self.exchanger.state_dict(),
            "anchor": dict(self.anchor),
            "momentum": {name: store_momentum(state, self.anchor[name]) for name, state in self.momentum.items()},
            "steps_since_sync": {str(at): steps for at, steps in enumerate(self.steps_since_sync)},
            "pending_rounds": {str(at): pending.state_dict() for at, pending in enumerate(self.pending)},
            "rounds_started": self.num_started,
            "rounds": self.num_rounds,
            "bad_in_a_row": self.bad_in_a_row,
            "full_averages": self.num_full_averages,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a stored state; CheckpointError if it belongs to other layers or fragments."""
        require_keys(state, STORED, "local training")
        if differing := sorted(state["anchor"].keys() ^ self.anchor.keys()):
            raise CheckpointError(f"the stored anchors and this model's differ in the layers {', '.join(differing)}")
        if (stored := len(state["steps_since_sync"])) != len(self.fragments):
            raise CheckpointError(f"local: the stored state has num_fragments={stored}, got {len(self.fragments)}")
        self.exchanger.load_state_dict(state["exchanger"])
        self.anchor = {n: state["anchor"][n].to(a.device, a.dtype, copy=True) for n, a in self.anchor.items()}
        momentum, outer = state["momentum"], self.settings.outer_optimizer
        self.momentum = {n: restore_momentum(outer, self.anchor[n], momentum[n]) for n in self.momentum}
        self.steps_since_sync = [int(state["steps_since_sync"][str(at)]) for at in range(len(self.fragments))]
        pending = state["pending_rounds"]
        self.pending = [PendingRound.from_state(pending[at]) for at in sorted(pending, key=int)]
        self.num_started, self.num_rounds = int(state["rounds_started"]), int(state["rounds"])
        self.bad_in_a_row, self.num_full_averages = int(state["bad_in_a_row"]), int(state["full_averages"])

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One rank's state from those of a world of another size: means, which equal the states where ranks agree."""
        exchanger = self.exchanger.merge_states([state["exchanger"] for state in states])
        return {**merge_round_states(states), "exchanger": exchanger}
