"""Parameter server: asynchronous, stale-synchronous (SSP, Ho et al., 2013) and synchronous SGD as one state machine.

Workers send compressed gradients; the server applies them and sends the model. It has no socket and no clock:
`handle(message, now)` returns the reply.
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
from .config import check_config, describe_config, digest_config
from .downlink import DownlinkCodec, PerWorkerCopies, dense_payload
from .members import ASYNCHRONOUS, Member, Members, Staleness
from .messages import (
    CONFIG,
    INTERNAL,
    Rejected,
    check_last_accepted,
    check_server_epoch,
    dispatch,
    expect_step,
    int_field,
    new_epoch,
    reply,
)
from .optimizers import OuterOptimizer, restore_optimizer_state, step_all
from .texts import resolve_outer_optimizer
from .uplink import Composition, UpdateDecoder, make_specs


class AcceptedUpdate(NamedTuple):
    """An update that was accepted and is not applied yet, because its worker is too far ahead."""

    values: dict[str, Tensor]
    version: int  # of the model it was computed on
    clock: int  # of its worker, with this update counted


class GradientServer:
    """Holds the weights and the optimizer; workers join, pull, push and leave.

    An update is applied, and its worker continues, as soon as the worker's clock is at most `max_lead` ahead of the
    slowest. All updates that become due at once are one optimizer step with the sum of g/n, in the order of names; n is
    the number of workers present. So max_lead=0 averages the updates of all workers, and max_lead=inf takes a step for
    each update.

    Args:
        weights: the model.
        optimizer: of the server, an object or a text.
        composition: what workers send through.
        staleness: how far workers may be apart.
        workers: training starts when this many have joined.
        downlink_compression: a compressor for the model; None: the whole model is sent.
        worker_timeout_s: a worker that sends nothing for this long is not waited for any more.
        max_workers: number of different workers, those that have left included.
        seed: of random compressors.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        optimizer: OuterOptimizer | str,
        composition: Composition = "dense()",
        staleness: Staleness = ASYNCHRONOUS,
        *,
        workers: int = 1,
        downlink_compression: str | None = None,
        worker_timeout_s: float = math.inf,
        max_workers: int = 1024,
        seed: int = 0,
    ) -> None:
        if workers < 1 or max_workers < workers or not worker_timeout_s > 0:
            got = f"workers={workers}, max_workers={max_workers}, worker_timeout_s={worker_timeout_s}"
            raise CompositionError(
                f"GradientServer: 1 <= workers <= max_workers and worker_timeout_s > 0 are needed, got {got}"
            )
        self.weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self.layers = make_specs(self.weights)
        self.optimizer = resolve_outer_optimizer(optimizer)
        self.optimizer_state = {name: self.optimizer.init(tensor) for name, tensor in self.weights.items()}
        self.decoder = UpdateDecoder(self.layers, composition, seed)
        codec = None if downlink_compression is None else DownlinkCodec(self.layers, downlink_compression, seed)
        self.copies = None if codec is None else PerWorkerCopies(codec)
        self.config = describe_config(self.layers, self.decoder.text, codec.text if codec else "dense")
        self.digest = digest_config(self.config)
        self.members = Members(staleness, max_workers)
        self.staleness, self.workers, self.worker_timeout_s = staleness, workers, worker_timeout_s
        self.started, self.server_epoch, self.run_id = False, new_epoch(), new_epoch()
        self.resumed = False  # from a stored state: timers start with the next message
        self.version = 0  # optimizer steps so far
        self.pending_updates: dict[str, AcceptedUpdate] = {}
        self.staleness_counts: Counter[int] = Counter()  # versions behind, of every applied update
        self.lead_counts: Counter[int] = Counter()  # steps ahead of the slowest, of every model sent
        self.rejections: Counter[str] = Counter()  # by reason
        self.repeated = self.applied = self.overflowed = self.evicted = 0

    def handle(self, message: Message, now: float) -> Message:
        """The reply to a message. A rejected message changes nothing but the counts."""
        self.expire(now)
        methods = {"join": self._join, "pull": self._pull, "push": self._push, "leave": self._leave}
        handlers = {kind: partial(method, now=now) for kind, method in methods.items()}
        return dispatch(message, handlers, lambda rejection: self._count_rejection(message.sender, rejection))

    def _count_rejection(self, sender: str, rejection: Rejected) -> None:
        self.rejections[rejection.reason] += 1
        if sender in self.members.all and rejection.reason != INTERNAL:
            self.members.all[sender].rejected += 1

    def expire(self, now: float) -> list[str]:
        """Stop waiting for overdue workers and return their names. Call it regularly, also without messages."""
        if self.resumed:
            self.members.restart_timers(now)
            self.resumed = False
        overdue = self.members.overdue(now, self.worker_timeout_s) if self.started else []
        for name in overdue:
            self._remove(name)
            self.evicted += 1
        if overdue:
            self._apply_due_updates(now)
        return overdue

    def _join(self, message: Message, now: float) -> Message:
        check_config(self.config, message.payload)
        last_accepted = int_field(message, "last_accepted", -1)
        member = self.members.join(message.sender, now)
        if message.sender in self.pending_updates:  # of before it left: this step of it is done already
            member.clock = max(member.clock, self.pending_updates[message.sender].clock)
        reset = self.decoder.keeps_estimates and last_accepted != member.last_accepted
        if reset:  # one side has lost its memory, so both start again
            self.decoder.forget(message.sender)
            member.last_accepted = -1
        if self.copies is not None:
            self.copies.start(message.sender, self.weights)
        if not self.started and len(self.members.present()) >= self.workers:
            self.started = True
            for name in self.members.present():
                self.members.all[name].since = now
        self._apply_due_updates(now)
        ids = {"server_epoch": self.server_epoch, "run_id": self.run_id}
        fields = {"step": member.step + 1, "version": self.version, "reset": reset, **ids}
        return reply(message, "welcome", fields, dense_payload(self.weights))

    def _leave(self, message: Message, now: float) -> Message:
        self.members.get(message.sender)
        self._remove(message.sender)
        self._apply_due_updates(now)
        return reply(message, "bye")

    def _remove(self, name: str) -> None:
        """Its estimate is kept, because the worker may return with its memory; its copy of the model is not."""
        self.members.leave(name)
        if self.copies is not None:
            self.copies.forget(name)

    def _pull(self, message: Message, now: float) -> Message:
        member = self.members.get(message.sender)
        check_server_epoch(message, self.server_epoch)
        if not self.started or self.members.must_wait(member.clock):
            return reply(message, "wait")
        payload = self._model_payload(message)
        self.lead_counts[self.members.lead(member.clock)] += 1
        return reply(message, "model", {"version": self.version}, payload)

    def _model_payload(self, message: Message) -> Payload:
        if self.copies is None:
            return dense_payload(self.weights)
        return self.copies.reply(message.sender, int_field(message, "changes_received"), self.weights)

    def _push(self, message: Message, now: float) -> Message:
        step, record = expect_step(message), self.members.all.get(message.sender)
        if record is not None and step <= record.step:
            return self._answer_repeat(message, record, step)  # even if it has left: the answer may have been lost
        member = self.members.get(message.sender)
        try:
            update = self._read_update(message, member, step)
        except Rejected as rejection:
            member.step, member.reason, member.text = step, rejection.reason, str(rejection)
            raise
        self.decoder.commit(message.sender, update.values)
        self.pending_updates[message.sender] = update
        member.clock, member.step, member.last_accepted, member.reason = update.clock, step, step, ""
        member.since = now
        self._apply_due_updates(now)
        return reply(message, "accepted", {"version": self.version})

    def _answer_repeat(self, message: Message, member: Member, step: int) -> Message:
        """Answer a repeated update as the first time; nothing changes. The worker may have missed that answer."""
        self.repeated += 1
        if step < member.step:
            raise Rejected("old", f"step {step} of {message.sender} is older than its last one, {member.step}")
        if member.reason:
            return Rejected(member.reason, member.text).reply(message)
        return reply(message, "accepted", {"version": self.version, "is_repeat": True})

    def _read_update(self, message: Message, member: Member, step: int) -> AcceptedUpdate:
        if message.fields.get("config") != self.digest:
            raise Rejected(CONFIG, f"push: layers or settings differ from the server's ({self.digest}); join again")
        if self.decoder.keeps_estimates:
            check_last_accepted(message, member.last_accepted)
        if not self.started or self.members.must_wait(member.clock):
            lead = self.staleness.max_lead
            raise Rejected("ahead", f"{message.sender} is more than {lead:g} steps ahead; pull the model first")
        version = int_field(message, "version", 0, self.version)
        stale, limit = self.version - version, self.staleness.max_staleness
        if limit is not None and stale > limit:
            raise Rejected("late", f"the model has made {stale} steps since version {version}; {limit} are allowed")
        return AcceptedUpdate(self.decoder.read(message.payload, message.sender, step), version, member.clock + 1)

    def _apply_due_updates(self, now: float) -> None:
        """Apply all updates that are due, as one step."""
        due = sorted(n for n, update in self.pending_updates.items() if not self.members.must_wait(update.clock))
        updates = [self.pending_updates.pop(name) for name in due]
        if updates:
            mean = sum_shares([update.values for update in updates], len({*self.members.present(), *due}))
            stepped = step_all(self.optimizer, self.weights, mean, self.optimizer_state)
            self.applied += len(updates) if stepped else 0
            self.overflowed += 0 if stepped else len(updates)
            if stepped:
                self.weights, self.optimizer_state = stepped
                self.staleness_counts.update(self.version - update.version for update in updates)
                self.version += 1
        self.members.update_waiting(now)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers: everything needed to resume with the same next step."""
        counts = ("started", "version", "repeated", "applied", "overflowed", "evicted")
        return {
            "weights": dict(self.weights),
            "optimizer_state": {name: flatten_state(state) for name, state in self.optimizer_state.items()},
            "decoder": self.decoder.state_dict(),
            "copies": None if self.copies is None else self.copies.state_dict(),
            "members": self.members.state_dict(),
            "pending_updates": {name: [dict(u.values), u.version, u.clock] for name, u in self.pending_updates.items()},
            "counts": {name: getattr(self, name) for name in counts},
            "run_id": self.run_id,
            "counters": [dict(self.staleness_counts), dict(self.lead_counts), dict(self.rejections)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a stored state; timers and the server epoch start again."""
        check_layers(self.weights, state["weights"])
        self.optimizer_state = {
            name: restore_optimizer_state(self.optimizer, self.weights[name], stored)
            for name, stored in state["optimizer_state"].items()
        }
        self.weights = {name: state["weights"][name].clone() for name in self.weights}
        self.decoder.load_state_dict(state["decoder"])
        if self.copies is not None:
            self.copies.load_state_dict(state["copies"])
        self.members.load_state_dict(state["members"])
        self.pending_updates = {name: AcceptedUpdate(*update) for name, update in state["pending_updates"].items()}
        for name, value in state["counts"].items():
            setattr(self, name, value)
        self.server_epoch, self.run_id, self.resumed = new_epoch(), state.get("run_id", self.run_id), True
        self.staleness_counts, self.lead_counts, self.rejections = (Counter(counts) for counts in state["counters"])


def sum_shares(updates: Sequence[Mapping[str, Tensor]], workers: int) -> dict[str, Tensor]:
    """Sum of update/workers, in this order: the bits of a gathered average."""
    total = {name: torch.zeros_like(value) for name, value in updates[0].items()}
    for update in updates:
        for name, value in update.items():
            total[name] += value * (1 / workers)
    return total


def check_layers(ours: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> None:
    """Raise KeyError if stored weights have other names, shapes or dtypes."""
    own, other = ({name: (tuple(t.shape), t.dtype) for name, t in tensors.items()} for tensors in (ours, stored))
    if differing := sorted(name for name in {**ours, **stored} if own.get(name) != other.get(name)):
        raise KeyError(f"stored layers differ from this model's in {differing}")
