"""Federated averaging (FedAvg, McMahan et al., 2017): sampled clients train locally; the server averages their changes.

A state machine like `GradientServer`: `handle(message, now)` returns the reply.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from ..core import Message, Payload, flatten_state
from ..core.logs import get_logger
from .config import check_config, describe_config, digest_config
from .downlink import DownlinkCodec, SharedCopy
from .messages import (
    CONFIG,
    NO_STRIKE,
    NO_UPDATE,
    UNKNOWN,
    Rejected,
    check_last_accepted,
    check_server_epoch,
    dispatch,
    expect_step,
    int_field,
    new_epoch,
    reply,
    reported_reason,
)
from .optimizers import SGD, OuterOptimizer, restore_optimizer_state, step_all
from .robust import flatten_layers, unflatten_layers
from .sampling import ClientRecord, FederatedConfig, read_num_examples, sample_clients
from .server import check_layers
from .texts import resolve_outer_optimizer
from .uplink import Composition, UpdateDecoder, make_specs

log = get_logger(__name__)


class FederatedServer:
    """Rounds start when `expected` clients have joined and follow one another until `settings.rounds` are done.

    Args:
        weights: the model.
        settings: of the rounds.
        composition: what clients send through.
        optimizer: of the server, an object or a text; SGD(lr=1) is FedAvg.
        downlink_compression: a compressor for the model; None: the whole model is sent.
        expected: the first round starts when this many clients have joined; None: settings.clients.
        max_clients: number of different clients.
        seed: of client sampling and random compressors.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        settings: FederatedConfig,
        composition: Composition = "dense()",
        optimizer: OuterOptimizer | str = SGD(lr=1.0),  # noqa: B008  (immutable)
        *,
        downlink_compression: str | None = None,
        expected: int | None = None,
        max_clients: int = 100_000,
        seed: int = 0,
    ) -> None:
        self.weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self.layers = make_specs(self.weights)
        self.settings, self.optimizer, self.seed = settings, resolve_outer_optimizer(optimizer), seed
        self.optimizer_state = {name: self.optimizer.init(tensor) for name, tensor in self.weights.items()}
        self.decoder = UpdateDecoder(self.layers, composition, seed)
        settings.aggregate.check(self.decoder.form.compressor, self.decoder.keeps_estimates)
        codec = None if downlink_compression is None else DownlinkCodec(self.layers, downlink_compression, seed)
        self.copy = SharedCopy(codec, self.weights)
        self.config = describe_config(self.layers, self.decoder.text, codec.text if codec else "dense")
        self.digest = digest_config(self.config)
        self.expected, self.max_clients = expected or settings.clients, max_clients
        self.clients: dict[str, ClientRecord] = {}
        self.round, self.server_epoch, self.run_id = 0, new_epoch(), new_epoch()
        self.resumed = False  # from a stored state: the timer of the round starts with the next message
        self.round_start: float | None = None  # when this round started; None before the first
        self.sampled: list[str] = []
        self.updates: dict[str, tuple[Payload, float]] = {}  # compressed, so that a round needs memory for frames only
        self.replaced_estimates: dict[str, dict[str, Tensor]] = {}  # EF21: of accepted clients that have rejoined since
        self.answers: dict[str, Rejected | None] = {}  # to the clients of this round; None: accepted
        self.rejections: Counter[str] = Counter()  # by reason
        self.history: list[dict[str, int]] = []

    @property
    def is_done(self) -> bool:
        """Whether all rounds are over."""
        return self.round >= self.settings.rounds

    def handle(self, message: Message, now: float) -> Message:
        """The reply to a message. A rejected message changes nothing but the counts and its client's strikes."""
        self.expire(now)
        handlers: dict[str, Callable[[Message], Message]] = {
            "join": partial(self._join, now=now),
            "pull": self._pull,
            "push": self._push,
            "skip": self._skip,
            "leave": self._leave,
        }
        answer = dispatch(message, handlers, lambda rejection: self._count_rejection(message.sender, rejection))
        if self.sampled and all(name in self.answers for name in self.sampled):
            self._close_round(now)  # after a rejection was counted, which decides which clients are sampled next
        return answer

    def _count_rejection(self, sender: str, rejection: Rejected) -> None:
        self.rejections[rejection.reason] += 1
        if sender in self.clients:
            client = self.clients[sender]
            client.strikes += rejection.reason not in NO_STRIKE
            client.last_reason = rejection.reason

    def expire(self, now: float) -> list[str]:
        """Close the round if its time is over; return the clients that had not answered. Call it regularly."""
        if self.resumed and self.round_start is not None:
            self.round_start = now
        self.resumed = False
        if self.round_start is None or self.is_done or now - self.round_start < self.settings.round_timeout_s:
            return []
        missing = [name for name in self.sampled if name not in self.answers]
        self._close_round(now)
        return missing

    def _join(self, message: Message, now: float) -> Message:
        check_config(self.config, message.payload)
        last_accepted = int_field(message, "last_accepted", -1)
        if message.sender not in self.clients and len(self.clients) >= self.max_clients:
            raise Rejected("full", f"{self.max_clients} clients have joined already; raise max_clients")
        client = self.clients.setdefault(message.sender, ClientRecord())
        client.has_left = False
        reset = self.decoder.keeps_estimates and last_accepted != client.last_accepted
        if reset:  # one side has lost its memory, so both start again
            if message.sender in self.updates and message.sender not in self.replaced_estimates:  # its update counts
                self.replaced_estimates[message.sender] = self.decoder.estimates[message.sender]
            self.decoder.forget(message.sender)
            client.last_accepted = -1
        if self.round_start is None and len(self.clients) >= self.expected:
            self._open_round(now)
        elif self.round_start is not None and not self.is_done and not self.sampled and self._eligible_clients():
            self._open_round(now)  # the round had no clients: all had been rejected too often
        return reply(message, "welcome", {"reset": reset, "server_epoch": self.server_epoch, "run_id": self.run_id})

    def _pull(self, message: Message) -> Message:
        if message.sender not in self.clients:
            raise Rejected(UNKNOWN, f"{message.sender!r} has not joined; join first")
        if self.is_done:
            return reply(message, "done")
        check_server_epoch(message, self.server_epoch)
        if self.round_start is None or message.sender not in self.sampled or message.sender in self.answers:
            return reply(message, "wait")
        is_full, payload = self.copy.payload_since(int_field(message, "model_round", -1))
        return Message("train", "server", self.round, message.sequence, {"is_full": is_full}, payload)

    def _push(self, message: Message) -> Message:
        if message.sender not in self.clients:
            raise Rejected(UNKNOWN, f"{message.sender!r} has not joined; join first")
        round = expect_step(message)
        if round < self.round and round == self.clients[message.sender].last_accepted:
            return reply(message, "accepted", {"is_repeat": True})  # its round has ended, and the answer was lost
        if self.is_done or self.round_start is None or round != self.round:
            raise Rejected(
                "round", f"this is round {self.round}, the update is of round {round}: too late, or not started"
            )
        if message.sender not in self.sampled:
            raise Rejected("sample", f"{message.sender!r} is not sampled in round {round}")
        if message.sender in self.answers:
            before = self.answers[message.sender]
            return reply(message, "accepted", {"is_repeat": True}) if before is None else before.reply(message)
        try:
            self._accept(message, round)
            self.answers[message.sender] = None
        except Rejected as rejection:
            self.answers[message.sender] = rejection
            raise
        return reply(message, "accepted")

    def _skip(self, message: Message) -> Message:
        """A client reports that it has no update in this round; the round does not wait for it."""
        if message.sender not in self.clients:
            raise Rejected(UNKNOWN, f"{message.sender!r} has not joined; join first")
        round, reason = expect_step(message), reported_reason(message)
        is_open = (
            self.round_start is not None and not self.is_done and round == self.round and message.sender in self.sampled
        )
        if is_open and message.sender not in self.answers:  # else it is late or a repeat
            log.warning("round %d: %r has no update: %s", round, message.sender, reason)
            self.answers[message.sender] = Rejected(NO_UPDATE, f"{message.sender!r} reported no update: {reason}")
        return reply(message, "noted")

    def _leave(self, message: Message) -> Message:
        """The client is not sampled any more, and this round does not wait for it; its accepted update counts."""
        if message.sender not in self.clients:
            raise Rejected(UNKNOWN, f"{message.sender!r} has not joined; join first")
        self.clients[message.sender].has_left = True
        if message.sender in self.sampled and message.sender not in self.answers:
            self.sampled.remove(message.sender)  # if it was the last one, the round waits for another client to join
        return reply(message, "bye")

    def _accept(self, message: Message, round: int) -> None:
        if message.fields.get("config") != self.digest:
            raise Rejected(CONFIG, f"push: layers or settings differ from the server's ({self.digest}); join again")
        if self.decoder.keeps_estimates:
            check_last_accepted(message, self.clients[message.sender].last_accepted)
        weight = min(float(read_num_examples(message)), self.settings.max_client_weight)
        values = self.decoder.read(message.payload, message.sender, round)
        self.decoder.commit(message.sender, values)
        self.clients[message.sender].last_accepted = round
        self.updates[message.sender] = (message.payload, weight)

    def _eligible_clients(self) -> list[str]:
        limit = self.settings.max_strikes
        present = {name: client for name, client in self.clients.items() if not client.has_left}
        return sorted(name for name, client in present.items() if limit is None or client.strikes < limit)

    def _open_round(self, now: float) -> None:
        self.sampled = sample_clients(self._eligible_clients(), self.settings.clients, self.seed, self.round)
        self.updates, self.replaced_estimates, self.answers, self.round_start = {}, {}, {}, now

    def _close_round(self, now: float) -> None:
        """Combine the updates, take one step of the server's optimizer, start the next round."""
        accepted = sorted(self.updates)
        needed = max(self.settings.min_updates, self.settings.aggregate.min_updates)
        stepped = self._step(accepted) if len(accepted) >= needed else None
        if stepped:
            self.weights, self.optimizer_state = stepped
        reasons = [answer.reason for answer in self.answers.values() if answer is not None]
        skipped = reasons.count(NO_UPDATE)
        counts = {
            "sampled": len(self.sampled),
            "accepted": len(accepted),
            "rejected": len(reasons) - skipped,
            "skipped": skipped,
            "stepped": int(bool(stepped)),
        }
        self.history.append(counts)
        self.round += 1
        self.copy.advance(self.weights, self.round)
        if self.is_done:
            self.sampled, self.updates, self.replaced_estimates, self.answers = [], {}, {}, {}
        else:
            self._open_round(now)

    def _step(self, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        weights = [self.updates[name][1] for name in names]
        mean = self.settings.aggregate.combine(self._rows(names), weights)
        return step_all(self.optimizer, self.weights, unflatten_layers(mean, self.layers), self.optimizer_state)

    def _rows(self, names: Sequence[str]) -> Iterator[Tensor]:
        for name in names:
            if self.decoder.keeps_estimates:
                replaced = self.replaced_estimates.get(name)  # the estimate when the update was accepted
                yield flatten_layers(self.decoder.estimates[name] if replaced is None else replaced, self.layers)
            else:
                yield flatten_layers(self.decoder.read(self.updates[name][0], name, self.round), self.layers)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers: everything needed to resume with the same next round; an open round is kept."""
        answers = {n: None if a is None else [a.reason, str(a)] for n, a in self.answers.items()}
        return {
            "weights": dict(self.weights),
            "optimizer_state": {name: flatten_state(state) for name, state in self.optimizer_state.items()},
            "decoder": self.decoder.state_dict(),
            "copy": self.copy.state_dict(),
            "clients": {
                name: [c.last_accepted, c.strikes, c.last_reason, c.has_left] for name, c in self.clients.items()
            },
            "round": [self.round, None if self.round_start is None else 0.0, list(self.sampled)],
            "updates": {name: [list(payload.parts), weight] for name, (payload, weight) in self.updates.items()},
            "replaced_estimates": {name: dict(values) for name, values in self.replaced_estimates.items()},
            "answers": answers,
            "run_id": self.run_id,
            "rejections": dict(self.rejections),
            "history": [dict(counts) for counts in self.history],
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
        self.copy.load_state_dict(state["copy"])
        self.clients = {name: ClientRecord(*fields) for name, fields in state["clients"].items()}
        self.round, self.round_start, self.sampled = state["round"]
        self.updates = {name: (Payload(tuple(parts)), weight) for name, (parts, weight) in state["updates"].items()}
        self.replaced_estimates = {name: dict(values) for name, values in state.get("replaced_estimates", {}).items()}
        self.answers = {name: None if a is None else Rejected(*a) for name, a in state["answers"].items()}
        self.server_epoch, self.run_id, self.resumed = new_epoch(), state.get("run_id", self.run_id), True
        self.rejections, self.history = Counter(state["rejections"]), list(state["history"])
