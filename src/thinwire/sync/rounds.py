"""One worker's rounds: what is read from its weights, exchanged, and merged into them again.

A step of local training is: `before_step`, the worker's own optimizer, `after_step`. Who can let a round travel while
the worker goes on does what `after_step` does piece by piece: `merge`, `average_if_due`, `depart`, `carry` each flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

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
    mean_state,
    require_keys,
    topology_of,
)
from ..exchange import Exchanger
from .flights import Flight, fragments_of, staggered
from .measures import anywhere, consensus, drift
from .optimizers import Average, restore_momentum, store_momentum
from .policies import Every, Moment
from .settings import Local, check_exchange

STORED = ("exchanger", "anchor", "momentum", "since", "flights", "departed", "rounds", "bad_in_a_row", "averages")


class Merged(NamedTuple):
    """What became of a round on this rank."""

    names: list[str]
    good: bool
    went_back: bool  # this rank's weights were no numbers, so they are its anchors again


class Rounds:
    """Reads and writes `parameters` in place. Memory: an anchor a layer, the outer momentum, flights, the exchanger's.

    An anchor is what the last round left, in float32 or wider. Where all ranks get the same average, all have the same
    anchors; under gossip each has its own. buffers: tensors beside the parameters (running means) that are averaged
    uncompressed with the first fragment. rules: an exchange for each layer; without, settings.exchange serves all.
    before_exchange: called with what a flight gives to the exchange, to look at it.
    """

    def __init__(
        self,
        settings: Local,
        parameters: Mapping[str, Tensor],
        rules: Mapping[str, Aggregator[Any]] | None = None,
        buffers: Mapping[str, Tensor] | None = None,
        seed: int = 0,
        before_exchange: Callable[[Mapping[str, Tensor]], None] | None = None,
    ) -> None:
        self.settings, self.parameters, self.buffers = settings, dict(parameters), dict(buffers or {})
        self.tensors = {**self.parameters, **self.buffers}
        rules = rules or dict.fromkeys(self.parameters, settings.exchange)
        check_exchange(settings.payload, rules.values())
        self.mixes = any(topology_of(rule) is not None for rule in rules.values())
        layers = [TensorSpec.of(name, p) for name, p in self.parameters.items()]
        extra = [TensorSpec.of(name, b) for name, b in self.buffers.items()]
        mixing = next((rule for rule in rules.values() if topology_of(rule) is not None), Dense())
        plain = dict.fromkeys(self.buffers, without_compression(mixing))
        self.exchanger = Exchanger([*layers, *extra], {**rules, **plain}, seed=seed, wait_for_flattened=False)
        self._dense = Exchanger([*layers, *extra], Dense())
        self.fragments = fragments_of(layers, settings.fragments)
        period = settings.policy.period if isinstance(settings.policy, Every) else 1
        self.since = staggered(period, len(self.fragments), settings.overlap and not settings.policy.looks_every)
        self.flights: list[Flight] = []
        self.departed = self.rounds = self.bad_in_a_row = self.averages = 0
        self.before_exchange = before_exchange
        self.anchor: dict[str, Tensor] = {}
        self.momentum: dict[str, Any] = {}  # states of the outer optimizer
        self.start_here()

    def start_here(self) -> None:
        """Take the present weights, which all ranks have alike, for where training begins."""
        kinds = {name: layer.work_dtype for name, layer in self.exchanger.layers.items()}
        keeps = self.settings.payload != "gradients"
        self.anchor = {n: t.detach().to(kinds[n], copy=True) for n, t in self.tensors.items() if keeps}
        self.momentum = {n: self.settings.outer.init(a) for n, a in self.anchor.items() if n in self.parameters}

    # A step

    def average_gradients(
        self, gradients: Mapping[str, Tensor], step: int, world: World, lr: float | None = None
    ) -> Program[dict[str, Tensor]]:
        """payload="gradients": this rank's view of their average; empty if some rank had a NaN or an infinity."""
        yield from self.exchanger.begin(step, world, lr)
        values = yield from self.exchanger.exchange(gradients, step, world)
        good = self.exchanger.settle()
        self.rounds += 1
        self.bad_in_a_row = 0 if good else self.bad_in_a_row + 1
        return values if good else {}

    def before_step(self, step: int) -> list[Merged]:
        """Local and silent: with overlap, what travelled while this step's gradient was computed is merged now."""
        return self.merge(step) if self.settings.overlap else []

    def after_step(self, step: int, world: World, lr: float | None = None) -> Program[list[Merged]]:
        """All that follows a local step, one thing after another. lr: the step's learning rate, if it is known."""
        merged = [] if self.settings.overlap else self.merge(step)
        yield from self.average_if_due(step, world)
        for flight in (yield from self.depart(step, world, lr)):
            yield from self.carry(flight, world)
        if self.settings.waits:
            merged += self.merge(step)
            yield from self.average_if_due(step, world)
        return merged

    def depart(self, step: int, world: World, lr: float | None = None) -> Program[list[Flight]]:
        """New flights, with the weights and learning rate as they are now, of the fragments whose round is due."""
        if self.settings.payload == "gradients":
            return []
        self.since = [steps + 1 for steps in self.since]
        policy, found = self.settings.policy, None
        if policy.looks_every and self.since[0] % policy.looks_every == 0:
            found = yield from drift(self.parameters, {n: self.anchor[n] for n in self.parameters}, step)
        busy = {flight.fragment for flight in self.flights}
        due = [at for at, steps in enumerate(self.since) if at not in busy and policy.due(Moment(step, steps, found))]
        merge_step = step + 1 if self.settings.overlap else step + self.settings.delay
        new = [Flight(at, self.departed + place, merge_step, self._given(at), lr=lr) for place, at in enumerate(due)]
        self.departed += len(new)
        for at in due:
            self.since[at] = 0
        self.flights += new
        return new

    def carry(self, flight: Flight, world: World) -> Program[None]:
        """Exchange what a flight was given; it reads nothing that the worker changes meanwhile.

        The exchanger counts rounds, not steps: partners that rotate would else be the same ones at every round of some
        periods.
        """
        if self.before_exchange is not None:
            self.before_exchange(flight.given)
        yield from self.exchanger.begin(flight.number, world, flight.lr)
        values = yield from self.exchanger.exchange(flight.given, flight.number, world)
        flight.good = self.exchanger.settle()
        flight.values, flight.given = values, {}

    def merge(self, step: int) -> list[Merged]:
        """Local and silent: flights that are due and have been answered become weights."""
        due = [flight for flight in self.flights if flight.merge_step <= step and flight.values]
        self.flights = [flight for flight in self.flights if flight not in due]
        return [self._merge(flight) for flight in due]

    def average_if_due(self, step: int, world: World) -> Program[bool]:
        """The periodic full average, counted in rounds; True if there was one. Before new flights read the weights."""
        due = self.rounds // self.settings.average_every if self.settings.average_every else 0
        if due == self.averages:
            return False
        self.averages = due
        return (yield from self.full_average(step, world))

    def consensus(self, step: int, world: World) -> Program[float]:
        """How far this rank's and the others' weights are apart: (1/n) sum |w_i - mean w|^2."""
        return (yield from consensus(self.parameters, world, step))

    def full_average(self, step: int, world: World) -> Program[bool]:
        """All ranks' weights become their mean, exactly; so do anchors where ranks have different ones.

        Residuals and the outer momentum stay. False, and nothing has changed, if some rank had no numbers.
        """
        apart = self.mixes and bool(self.anchor)  # each rank has anchors of its own
        fresh = apart and (yield from self._all_at_anchors(step))
        means: dict[str, Tensor] = {}
        anchors = {name: anchor.to(self.tensors[name].dtype) for name, anchor in self.anchor.items()}
        if apart:
            anchors = means = yield from self._dense.run_step(anchors, step, world)
        if not fresh:  # else weights are their anchors
            means = yield from self._dense.run_step(self.tensors, step, world)
        if not all(map(all_finite, (*means.values(), *anchors.values()))):
            return False
        with torch.no_grad():
            for name, tensor in means.items():
                self.tensors[name].copy_(tensor)
            for name, anchor in anchors.items() if apart else ():
                self.anchor[name] = anchor.to(self.anchor[name].dtype, copy=True)
        return True

    def _all_at_anchors(self, step: int) -> Program[bool]:
        """Whether every rank's weights are its anchors, as good rounds leave them: then half a full average will do.

        What a rank can know of the others decides whether to ask (4 bytes): one that skipped a round is not there.
        """
        if any(self.since) or self.flights or self.settings.mixing or not self.rounds:
            return False
        apart = any(not torch.equal(self.tensors[n], a.to(self.tensors[n].dtype)) for n, a in self.anchor.items())
        return not (yield from anywhere(apart, step))

    # What a round reads and writes

    def _given(self, fragment: int) -> dict[str, Tensor]:
        names = self.fragments[fragment]
        given = {name: self._payload(name) for name in names}
        return given | ({n: b.detach().clone() for n, b in self.buffers.items()} if fragment == 0 else {})

    def _payload(self, name: str) -> Tensor:
        parameter, anchor = self.parameters[name].detach(), self.anchor[name]
        if self.settings.payload == "weights":
            return parameter.clone()
        began = anchor.to(parameter.dtype).to(anchor.dtype)  # where this rank's weights did begin
        return (began - parameter.to(anchor.dtype)).to(parameter.dtype)

    def _merge(self, flight: Flight) -> Merged:
        names = self.fragments[flight.fragment]
        self.rounds += 1
        self.bad_in_a_row = 0 if flight.good else self.bad_in_a_row + 1
        if not flight.good:
            return Merged(names, False, self._went_back())
        with torch.no_grad():
            for name in names:
                self._merge_layer(name, flight.values[name])
            for name in flight.values.keys() - set(names):
                self.buffers[name].copy_(flight.values[name])
                self.anchor[name].copy_(flight.values[name])
        return Merged(names, True, False)

    def _merge_layer(self, name: str, value: Tensor) -> None:
        anchor, outer, parameter = self.anchor[name], self.settings.outer, self.parameters[name]
        value = value.to(anchor.dtype)
        if self.settings.payload == "weights" and isinstance(outer, Average):
            new, momentum = value.clone(), self.momentum[name]
        else:
            delta = anchor - value if self.settings.payload == "weights" else value
            new, momentum = outer.step(anchor, delta, self.momentum[name])
        self.anchor[name], self.momentum[name] = new, momentum
        share = self.settings.mixing
        parameter.copy_(share * parameter.to(new.dtype) + (1 - share) * new if share else new)

    def _went_back(self) -> bool:
        """After a round that was skipped: a rank without sound weights takes its anchors; others keep what they have.

        What they did since the last good round is in their next delta, so nothing of it is lost.
        """
        if all(all_finite(tensor.detach()) for tensor in self.tensors.values()):
            return False
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(self.anchor[name])
        return True

    # State

    def state_dict(self) -> dict[str, Any]:
        """Enough to go on with the same next step, in the middle of a period, too. All flights have been answered."""
        return {
            "exchanger": self.exchanger.state_dict(),
            "anchor": dict(self.anchor),
            "momentum": {name: store_momentum(kept, self.anchor[name]) for name, kept in self.momentum.items()},
            "since": {str(at): steps for at, steps in enumerate(self.since)},
            "flights": {str(at): flight.state_dict() for at, flight in enumerate(self.flights)},
            "departed": self.departed,
            "rounds": self.rounds,
            "bad_in_a_row": self.bad_in_a_row,
            "averages": self.averages,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys(state, STORED, "local training")
        if odd := sorted(state["anchor"].keys() ^ self.anchor.keys()):
            raise CheckpointError(f"stored anchors differ from this model's in {', '.join(odd)}")
        if len(state["since"]) != len(self.fragments):
            raise CheckpointError(f"got fragments={len(self.fragments)}, stored are {len(state['since'])}; use as many")
        self.exchanger.load_state_dict(state["exchanger"])
        self.anchor = {n: state["anchor"][n].to(a.device, a.dtype, copy=True) for n, a in self.anchor.items()}
        kept, outer = state["momentum"], self.settings.outer
        self.momentum = {n: restore_momentum(outer, self.anchor[n], kept[n]) for n in self.momentum}
        self.since = [int(state["since"][str(at)]) for at in range(len(self.since))]
        self.flights = [Flight.of_state(state["flights"][at]) for at in sorted(state["flights"], key=int)]
        self.departed, self.rounds = int(state["departed"]), int(state["rounds"])
        self.bad_in_a_row, self.averages = int(state["bad_in_a_row"]), int(state["averages"])

    def merged(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One rank's state out of those of a world of another size: means, which where ranks agree are theirs."""
        first = states[0]
        require_keys(first, STORED, "local training")
        means = {
            part: {name: mean_state([state[part][name] for state in states]) for name in first[part]}
            for part in ("anchor", "momentum")
        }
        flights = {}
        for at, flight in first["flights"].items():
            values = [state["flights"][at]["values"] for state in states]
            mean = {name: mean_state([value[name] for value in values]) for name in flight["values"]}
            flights[at] = {**flight, "values": mean}
        exchanger = self.exchanger.merge_states([state["exchanger"] for state in states])
        return {**first, **means, "flights": flights, "exchanger": exchanger}
