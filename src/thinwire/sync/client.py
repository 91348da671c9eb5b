"""A client of a federation: its copy of the model, the memory of its compressor, and what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..catalog import parse, to_text
from ..core import Field, Message, ProtocolError, TensorSpec
from .downlink import Changes, cut_changes, read_dense
from .uplink import Uplink, digest_of, form_of
from .worker import said


class FederatedClient:
    """It sends start - end of its local training; its memory changes only when the update was accepted."""

    def __init__(
        self, name: str, layers: Sequence[TensorSpec], exchange: str = "dense()", down: str | None = None, seed: int = 0
    ) -> None:
        self.name, self.layers = name, list(layers)
        self.uplink = Uplink(layers, exchange, name, seed)
        self.changes = None if down is None else Changes(layers, down, seed)
        self.form = form_of(layers, to_text(parse(exchange)), self.changes.text if self.changes else "dense")
        self.digest = digest_of(self.form)
        self.weights: dict[str, Tensor] = {}
        self.have = -1  # the round whose model it holds
        self.round = -1  # the round it works in
        self.settled = -1  # the last round in which it was accepted
        self.unanswered: Message | None = None

    def join(self) -> Message:
        return Message("join", self.name, fields={"form": self.form, "settled": self.settled})

    def welcomed(self, reply: Message) -> None:
        if reply.kind != "welcome":
            raise ProtocolError(f"{self.name} asked to join: {said(reply)}")
        if reply.fields["reset"]:
            self.uplink.reset()
            self.settled = -1

    def pull(self) -> Message:
        return Message("pull", self.name, max(0, self.round), fields={"have": self.have})

    def begin(self, reply: Message) -> bool:
        """Take the round's model over; False if there is nothing to do (now: `wait`, for ever: `done`)."""
        if reply.kind != "train":
            return False
        if reply.fields["whole"]:
            self.weights = read_dense(reply.payload, self.layers)
        elif self.changes is not None:
            for round, change in cut_changes(reply.payload, self.changes, self.have + 1, reply.round):
                self.weights = self.changes.added(self.weights, change, round)
        self.have = self.round = reply.round
        return True

    def push(self, trained: Mapping[str, Tensor], examples: int) -> Message | None:
        """What local training changed; None if it holds NaN or infinity: then nothing is sent."""
        change = {name: self.weights[name] - trained[name].detach() for name in self.weights}
        payload = self.uplink.encode(change, self.round)
        if payload is None:
            return None
        fields: dict[str, Field] = {"form": self.digest, "examples": examples}
        self.unanswered = Message("push", self.name, self.round, 0, fields, payload)
        return self.unanswered

    def settle(self, reply: Message, keep_refused: bool = False) -> bool:
        """Commit the memory if accepted. Else it stays as it was; the work of a missed round is not kept by default.

        It began from a model that is old by the next time this client is asked; keep_refused=True sends it then.
        """
        accepted = reply.kind == "accepted"
        self.uplink.settle(accepted, keep_refused)
        self.unanswered = None
        if accepted:
            self.settled = self.round
        return accepted

    def state_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in ("have", "round", "settled")}
        return {"weights": dict(self.weights), "uplink": self.uplink.state_dict(), "numbers": numbers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.uplink.exchanger.load_state_dict(state["uplink"])
        self.weights = {name: tensor.clone() for name, tensor in state["weights"].items()}
        for name, value in state["numbers"].items():
            setattr(self, name, value)
