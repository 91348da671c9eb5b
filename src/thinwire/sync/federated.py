"""Federated rounds: a few clients of many work on their own data, and the server averages what they changed.

A state machine like `Server`: it is given a message and the time, and gives the reply.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from ..core import Message, Payload, flatten_state
from ..core.logs import get_logger
from .downlink import Changes, SharedCopy
from .messages import (
    BLAMELESS,
    NO_UPDATE,
    Refused,
    answered,
    check_life,
    check_settled,
    expect_step,
    new_life,
    reply,
    reported_reason,
    whole,
)
from .optimizers import SGD, Outer, restore_outer, step_all
from .robust import flat, unflat
from .sampling import Client, Rounds, examples_of, sample
from .server import check_layers
from .texts import outer_of
from .uplink import Composition, Intake, check_form, digest_of, form_of, specs_of

log = get_logger(__name__)


class Federation:
    """Rounds begin when `expected` clients have joined, and follow one another until there were enough."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        rounds: Rounds,
        exchange: Composition = "dense()",
        optimizer: Outer | str = SGD(lr=1.0),  # noqa: B008  FedAvg; settings only
        *,
        down: str | None = None,
        expected: int | None = None,
        most_clients: int = 100_000,
        seed: int = 0,
    ) -> None:
        self.weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self.layers = specs_of(self.weights)
        self.rounds, self.optimizer, self.seed = rounds, outer_of(optimizer), seed
        self.memory = {name: self.optimizer.init(tensor) for name, tensor in self.weights.items()}
        self.intake = Intake(self.layers, exchange, seed)
        rounds.aggregate.check(self.intake.way.compressor, self.intake.way.believes)
        changes = None if down is None else Changes(self.layers, down, seed)
        self.copy = SharedCopy(changes, self.weights)
        self.form = form_of(self.layers, self.intake.text, changes.text if changes else "dense")
        self.digest = digest_of(self.form)
        self.expected, self.most_clients = expected or rounds.clients, most_clients
        self.clients: dict[str, Client] = {}
        self.round, self.life, self.run = 0, new_life(), new_life()
        self.resumed = False  # by a state: then no time is known until somebody says what time it is
        self.opened: float | None = None  # when this round began; None before the first
        self.sampled: list[str] = []
        self.updates: dict[str, tuple[Payload, float]] = {}  # as they came, so that a round costs frames, not models
        self.left: dict[str, dict[str, Tensor]] = {}  # ef21: beliefs of this round whose clients began anew since
        self.answers: dict[str, Refused | None] = {}  # to whom of this round what was said
        self.refusals: Counter[str] = Counter()
        self.history: list[dict[str, int]] = []

    @property
    def done(self) -> bool:
        return self.round >= self.rounds.rounds

    def handle(self, message: Message, now: float) -> Message:
        """The reply; what is refused changes nothing but the counts, and its client is marked."""
        self.expire(now)
        doors: dict[str, Callable[[Message], Message]] = {
            "join": partial(self._join, now=now),
            "pull": self._pull,
            "push": self._push,
            "skip": self._skip,
            "leave": self._leave,
        }
        answer = answered(message, doors, lambda refusal: self._refused(message.sender, refusal))
        if self.sampled and all(name in self.answers for name in self.sampled):
            self._close(now)  # after a refusal was counted, which decides on who is sampled next
        return answer

    def _refused(self, sender: str, refusal: Refused) -> None:
        self.refusals[refusal.reason] += 1
        if sender in self.clients:
            client = self.clients[sender]
            client.strikes += refusal.reason not in BLAMELESS
            client.last = refusal.reason

    def expire(self, now: float) -> list[str]:
        """Close the round if its time is over; who had not answered. Whoever has a timer calls this now and then."""
        if self.resumed and self.opened is not None:
            self.opened = now
        self.resumed = False
        if self.opened is None or self.done or now - self.opened < self.rounds.deadline:
            return []
        missing = [name for name in self.sampled if name not in self.answers]
        self._close(now)
        return missing

    def _join(self, message: Message, now: float) -> Message:
        check_form(self.form, message.payload)
        settled = whole(message, "settled", -1)
        if message.sender not in self.clients and len(self.clients) >= self.most_clients:
            raise Refused("full", f"{self.most_clients} clients have come already; raise most_clients")
        client = self.clients.setdefault(message.sender, Client())
        client.has_left = False
        reset = self.intake.way.believes and settled != client.settled
        if reset:  # one of the two has lost its memory, so both begin anew
            if message.sender in self.updates and message.sender not in self.left:  # accepted, so it counts
                self.left[message.sender] = self.intake.beliefs[message.sender]
            self.intake.forget(message.sender)
            client.settled = -1
        if self.opened is None and len(self.clients) >= self.expected:
            self._open(now)
        elif self.opened is not None and not self.done and not self.sampled and self._eligible():
            self._open(now)  # a round of nobody: all who were there had been refused too often
        return reply(message, "welcome", {"reset": reset, "life": self.life, "run": self.run})

    def _pull(self, message: Message) -> Message:
        if message.sender not in self.clients:
            raise Refused("unknown", f"{message.sender!r} has not joined; join first")
        if self.done:
            return reply(message, "done")
        check_life(message, self.life)
        if self.opened is None or message.sender not in self.sampled or message.sender in self.answers:
            return reply(message, "wait")
        whole_model, payload = self.copy.since(whole(message, "have", -1))
        return Message("train", "server", self.round, message.sequence, {"whole": whole_model}, payload)

    def _push(self, message: Message) -> Message:
        if message.sender not in self.clients:
            raise Refused("unknown", f"{message.sender!r} has not joined; join first")
        round = expect_step(message)
        if round < self.round and round == self.clients[message.sender].settled:
            return reply(message, "accepted", {"again": True})  # its round has ended since, its answer was lost
        if self.done or self.opened is None or round != self.round:
            raise Refused(
                "round", f"this is round {self.round}, the update is of round {round}: too late, or never begun"
            )
        if message.sender not in self.sampled:
            raise Refused("sample", f"{message.sender!r} was not asked in round {round}")
        if message.sender in self.answers:
            before = self.answers[message.sender]
            return reply(message, "accepted", {"again": True}) if before is None else before.reply(message)
        try:
            self._take(message, round)
            self.answers[message.sender] = None
        except Refused as refusal:
            self.answers[message.sender] = refusal
            raise
        return reply(message, "accepted")

    def _skip(self, message: Message) -> Message:
        """A client that trained in vain has answered this round; the round closes without an update of it."""
        if message.sender not in self.clients:
            raise Refused("unknown", f"{message.sender!r} has not joined; join first")
        round, reason = expect_step(message), reported_reason(message)
        is_open = self.opened is not None and not self.done and round == self.round and message.sender in self.sampled
        if is_open and message.sender not in self.answers:  # else it is late, or a repeat: nothing is left to close
            log.warning("round %d: %r has no update: %s", round, message.sender, reason)
            self.answers[message.sender] = Refused(NO_UPDATE, f"{message.sender!r} said it has no update: {reason}")
        return reply(message, "noted")

    def _leave(self, message: Message) -> Message:
        """It is not sampled any more, and this round does not wait for it; an update that was accepted counts."""
        if message.sender not in self.clients:
            raise Refused("unknown", f"{message.sender!r} has not joined; join first")
        self.clients[message.sender].has_left = True
        if message.sender in self.sampled and message.sender not in self.answers:
            self.sampled.remove(message.sender)  # if it was the last one, the round waits for a newcomer
        return reply(message, "bye")

    def _take(self, message: Message, round: int) -> None:
        if message.fields.get("form") != self.digest:
            raise Refused("form", f"push: layers or settings differ from the server's ({self.digest}); join again")
        if self.intake.way.believes:
            check_settled(message, self.clients[message.sender].settled)
        weight = min(float(examples_of(message)), self.rounds.max_client_weight)
        values = self.intake.read(message.payload, message.sender, round)
        self.intake.commit(message.sender, values)
        self.clients[message.sender].settled = round
        self.updates[message.sender] = (message.payload, weight)

    def _eligible(self) -> list[str]:
        strikes = self.rounds.max_strikes
        here = {name: client for name, client in self.clients.items() if not client.has_left}
        return sorted(name for name, client in here.items() if strikes is None or client.strikes < strikes)

    def _open(self, now: float) -> None:
        self.sampled = sample(self._eligible(), self.rounds.clients, self.seed, self.round)
        self.updates, self.left, self.answers, self.opened = {}, {}, {}, now

    def _close(self, now: float) -> None:
        """Average what came, take one step of the server's optimizer, begin the next round."""
        accepted = sorted(self.updates)
        enough = len(accepted) >= max(self.rounds.least, self.rounds.aggregate.least)
        done = self._stepped(accepted) if enough else None
        if done:
            self.weights, self.memory = done
        reasons = [answer.reason for answer in self.answers.values() if answer is not None]
        skipped = reasons.count(NO_UPDATE)
        counts = {
            "sampled": len(self.sampled),
            "accepted": len(accepted),
            "refused": len(reasons) - skipped,
            "skipped": skipped,
            "stepped": int(bool(done)),
        }
        self.history.append(counts)
        self.round += 1
        self.copy.advance(self.weights, self.round)
        if self.done:
            self.sampled, self.updates, self.left, self.answers = [], {}, {}, {}
        else:
            self._open(now)

    def _stepped(self, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        weights = [self.updates[name][1] for name in names]
        mean = self.rounds.aggregate.combined(self._rows(names), weights)
        return step_all(self.optimizer, self.weights, unflat(mean, self.layers), self.memory)

    def _rows(self, names: Sequence[str]) -> Iterator[Tensor]:
        for name in names:
            if self.intake.way.believes:
                belief = self.left[name] if name in self.left else self.intake.beliefs[name]
                yield flat(belief, self.layers)  # what the update made of it when it was accepted
            else:
                yield flat(self.intake.read(self.updates[name][0], name, self.round), self.layers)

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers: enough to go on with the same next round; an open one is kept as it is."""
        answers = {n: None if a is None else [a.reason, str(a)] for n, a in self.answers.items()}
        return {
            "weights": dict(self.weights),
            "memory": {name: flatten_state(state) for name, state in self.memory.items()},
            "intake": self.intake.state_dict(),
            "copy": self.copy.state_dict(),
            "clients": {name: [c.settled, c.strikes, c.last, c.has_left] for name, c in self.clients.items()},
            "round": [self.round, None if self.opened is None else 0.0, list(self.sampled)],
            "updates": {name: [list(payload.parts), weight] for name, (payload, weight) in self.updates.items()},
            "left": {name: dict(values) for name, values in self.left.items()},
            "answers": answers,
            "run": self.run,
            "refusals": dict(self.refusals),
            "history": [dict(counts) for counts in self.history],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_layers(self.weights, state["weights"])
        memory = {n: restore_outer(self.optimizer, self.weights[n], kept) for n, kept in state["memory"].items()}
        self.weights, self.memory = {name: state["weights"][name].clone() for name in self.weights}, memory
        self.intake.load_state_dict(state["intake"])
        self.copy.load_state_dict(state["copy"])
        self.clients = {name: Client(*fields) for name, fields in state["clients"].items()}
        self.round, self.opened, self.sampled = state["round"]
        self.updates = {name: (Payload(tuple(parts)), weight) for name, (parts, weight) in state["updates"].items()}
        self.left = {name: dict(values) for name, values in state.get("left", {}).items()}
        self.answers = {name: None if a is None else Refused(*a) for name, a in state["answers"].items()}
        self.life, self.run, self.resumed = new_life(), state.get("run", self.run), True
        self.refusals, self.history = Counter(state["refusals"]), list(state["history"])
