"""A server that holds the model: asynchronous, stale-synchronous and synchronous training as one state machine.

It knows no socket and no clock: it is given a message and the time, and gives the reply.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import CompositionError, Message, Payload, flatten_state
from .downlink import Changes, PersonalCopies, dense_payload
from .members import ASYNCHRONOUS, Member, Members, Pace
from .messages import INTERNAL, Refused, answered, check_life, check_settled, expect_step, new_life, reply, whole
from .optimizers import Outer, restore_outer, step_all
from .texts import outer_of
from .uplink import Composition, Intake, check_form, digest_of, form_of, specs_of


class Held(NamedTuple):
    """An update that was accepted and is not applied yet: its worker is too far ahead."""

    values: dict[str, Tensor]
    version: int  # of the model it was worked out on
    clock: int  # its worker's, with this update counted


class Server:
    """Weights, one optimizer, and workers that come, pull, push and go.

    One rule for every pace: an update is applied, and its worker goes on, as soon as the worker's clock is at most
    `bound` ahead of the slowest. All updates that become due at once are one optimizer step with the sum of g/n, in
    the order of names, n being the workers present; so bound=0 is the average of a tick, and bound=inf a step each.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        optimizer: Outer | str,
        exchange: Composition = "dense()",
        pace: Pace = ASYNCHRONOUS,
        *,
        workers: int = 1,
        down: str | None = None,
        deadline: float = math.inf,
        most_workers: int = 1024,
        seed: int = 0,
    ) -> None:
        if workers < 1 or most_workers < workers or not deadline > 0:
            got = f"workers={workers}, most_workers={most_workers}, deadline={deadline}"
            raise CompositionError(f"Server: 1 <= workers <= most_workers and deadline > 0 wanted, got {got}")
        self.weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self.layers = specs_of(self.weights)
        self.optimizer = outer_of(optimizer)
        self.memory = {name: self.optimizer.init(tensor) for name, tensor in self.weights.items()}
        self.intake = Intake(self.layers, exchange, seed)
        self.copies = None if down is None else PersonalCopies(Changes(self.layers, down, seed))
        self.form = form_of(self.layers, self.intake.text, self.copies.changes.text if self.copies else "dense")
        self.digest = digest_of(self.form)
        self.members = Members(pace, most_workers)
        self.pace, self.workers, self.deadline = pace, workers, deadline
        self.started, self.life, self.run = False, new_life(), new_life()
        self.resumed = False  # by a state: then no time is known until somebody says what time it is
        self.version = 0  # optimizer steps so far
        self.held: dict[str, Held] = {}
        self.staleness: Counter[int] = Counter()  # versions behind, of every update applied
        self.leads: Counter[int] = Counter()  # steps ahead of the slowest, of every model given out
        self.refusals: Counter[str] = Counter()
        self.repeated = self.applied = self.overflowed = self.evicted = 0

    def handle(self, message: Message, now: float) -> Message:
        """The reply; what is refused changes nothing but the counts, and the sender is marked."""
        self.expire(now)
        doors = {"join": self._join, "pull": self._pull, "push": self._push, "leave": self._leave}
        at = {kind: partial(door, now=now) for kind, door in doors.items()}
        return answered(message, at, lambda refusal: self._refused(message.sender, refusal))

    def _refused(self, sender: str, refusal: Refused) -> None:
        self.refusals[refusal.reason] += 1
        if sender in self.members.all and refusal.reason != INTERNAL:
            self.members.all[sender].refused += 1

    def expire(self, now: float) -> list[str]:
        """Go on without those who are overdue; who they were. Whoever has a timer calls this now and then."""
        if self.resumed:
            self.members.resume(now)
            self.resumed = False
        late = self.members.overdue(now, self.deadline) if self.started else []
        for name in late:
            self._go(name)
            self.evicted += 1
        if late:
            self._release(now)
        return late

    def _join(self, message: Message, now: float) -> Message:
        check_form(self.form, message.payload)
        settled = whole(message, "settled", -1)
        member = self.members.come(message.sender, now)
        if message.sender in self.held:  # it left that behind: it has done this tick, and must not do it twice
            member.clock = max(member.clock, self.held[message.sender].clock)
        reset = self.intake.way.believes and settled != member.settled
        if reset:  # one of the two has lost its memory, so both begin anew
            self.intake.forget(message.sender)
            member.settled = -1
        if self.copies is not None:
            self.copies.start(message.sender, self.weights)
        if not self.started and len(self.members.present()) >= self.workers:
            self.started = True
            for name in self.members.present():
                self.members.all[name].since = now
        self._release(now)
        fields = {"step": member.step + 1, "version": self.version, "reset": reset, "life": self.life, "run": self.run}
        return reply(message, "welcome", fields, dense_payload(self.weights))

    def _leave(self, message: Message, now: float) -> Message:
        self.members.get(message.sender)
        self._go(message.sender)
        self._release(now)
        return reply(message, "bye")

    def _go(self, name: str) -> None:
        """A belief stays, for the worker may come back with its memory; a copy of the model is given anew then."""
        self.members.go(name)
        if self.copies is not None:
            self.copies.forget(name)

    def _pull(self, message: Message, now: float) -> Message:
        member = self.members.get(message.sender)
        check_life(message, self.life)
        if not self.started or self.members.must_wait(member.clock):
            return reply(message, "wait")
        payload = self._model(message)
        self.leads[self.members.lead(member.clock)] += 1
        return reply(message, "model", {"version": self.version}, payload)

    def _model(self, message: Message) -> Payload:
        if self.copies is None:
            return dense_payload(self.weights)
        return self.copies.reply(message.sender, whole(message, "have"), self.weights)

    def _push(self, message: Message, now: float) -> Message:
        step, known = expect_step(message), self.members.all.get(message.sender)
        if known is not None and step <= known.step:
            return self._again(message, known, step)  # even if it has gone since: the answer may have been lost
        member = self.members.get(message.sender)
        try:
            held = self._read(message, member, step)
        except Refused as refusal:
            member.step, member.reason, member.text = step, refusal.reason, str(refusal)
            raise
        self.intake.commit(message.sender, held.values)
        self.held[message.sender] = held
        member.clock, member.step, member.settled, member.reason = held.clock, step, step, ""
        member.since = now
        self._release(now)
        return reply(message, "accepted", {"version": self.version})

    def _again(self, message: Message, member: Member, step: int) -> Message:
        """A repeat is answered as the first was, and changes nothing: the worker may not have had that answer."""
        self.repeated += 1
        if step < member.step:
            raise Refused("old", f"step {step} of {message.sender} was answered long ago; it is at {member.step}")
        if member.reason:
            return Refused(member.reason, member.text).reply(message)
        return reply(message, "accepted", {"version": self.version, "again": True})

    def _read(self, message: Message, member: Member, step: int) -> Held:
        if message.fields.get("form") != self.digest:
            raise Refused("form", f"push: layers or settings differ from the server's ({self.digest}); join again")
        if self.intake.way.believes:
            check_settled(message, member.settled)
        if not self.started or self.members.must_wait(member.clock):
            raise Refused("ahead", f"{message.sender} is more than {self.pace.bound:g} steps ahead; wait for a model")
        version = whole(message, "version", 0, self.version)
        stale, most = self.version - version, self.pace.max_staleness
        if most is not None and stale > most:
            raise Refused("late", f"the model has made {stale} steps since version {version}; {most} are allowed")
        return Held(self.intake.read(message.payload, message.sender, step), version, member.clock + 1)

    def _release(self, now: float) -> None:
        """Apply all updates that are due, as one step."""
        due = sorted(name for name, held in self.held.items() if not self.members.must_wait(held.clock))
        group = {name: self.held.pop(name) for name in due}
        if group:
            mean = shares_added([held.values for held in group.values()], len({*self.members.present(), *due}))
            done = step_all(self.optimizer, self.weights, mean, self.memory)
            self.applied += len(group) if done else 0
            self.overflowed += 0 if done else len(group)
            if done:
                self.weights, self.memory = done
                self.staleness.update(self.version - held.version for held in group.values())
                self.version += 1
        self.members.look(now)

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers: enough to go on with the same next step."""
        counts = ("started", "version", "repeated", "applied", "overflowed", "evicted")
        return {
            "weights": dict(self.weights),
            "memory": {name: flatten_state(state) for name, state in self.memory.items()},
            "intake": self.intake.state_dict(),
            "copies": None if self.copies is None else self.copies.state_dict(),
            "members": self.members.state_dict(),
            "held": {name: [dict(held.values), held.version, held.clock] for name, held in self.held.items()},
            "counts": {name: getattr(self, name) for name in counts},
            "run": self.run,
            "counters": [dict(self.staleness), dict(self.leads), dict(self.refusals)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_layers(self.weights, state["weights"])
        memory = {n: restore_outer(self.optimizer, self.weights[n], flat) for n, flat in state["memory"].items()}
        self.weights, self.memory = {name: state["weights"][name].clone() for name in self.weights}, memory
        self.intake.load_state_dict(state["intake"])
        if self.copies is not None:
            self.copies.load_state_dict(state["copies"])
        self.members.load_state_dict(state["members"])
        self.held = {name: Held(*held) for name, held in state["held"].items()}
        for name, value in state["counts"].items():
            setattr(self, name, value)
        self.life, self.run, self.resumed = new_life(), state.get("run", self.run), True
        self.staleness, self.leads, self.refusals = (Counter(counts) for counts in state["counters"])


def shares_added(updates: Sequence[Mapping[str, Tensor]], workers: int) -> dict[str, Tensor]:
    """Sum of update/workers, in this order: the bits that a gathered average has."""
    total = {name: torch.zeros_like(value) for name, value in updates[0].items()}
    for update in updates:
        for name, value in update.items():
            total[name] += value * (1 / workers)
    return total


def check_layers(ours: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> None:
    forms = [{name: (tuple(t.shape), t.dtype) for name, t in tensors.items()} for tensors in (ours, stored)]
    if odd := sorted(name for name in {**ours, **stored} if forms[0].get(name) != forms[1].get(name)):
        raise KeyError(f"stored layers differ from this model's in {odd}")
