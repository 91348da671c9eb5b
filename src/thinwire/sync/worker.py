"""A worker of a server: what it says, and what it makes of the replies. The loop around it is in `serving`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..catalog import parse, to_text
from ..core import Field, Message, ProtocolError, TensorSpec
from .downlink import Changes, read_dense
from .messages import told
from .uplink import Uplink, digest_of, form_of


class Worker:
    """Its copy of the model and the memory of its compressor, which changes only when an update was accepted."""

    def __init__(
        self, name: str, layers: Sequence[TensorSpec], exchange: str = "dense()", down: str | None = None, seed: int = 0
    ) -> None:
        self.name, self.layers = name, list(layers)
        self.uplink = Uplink(layers, exchange, name, seed)
        self.changes = None if down is None else Changes(layers, down, seed)
        self.form = form_of(layers, to_text(parse(exchange)), self.changes.text if self.changes else "dense")
        self.digest = digest_of(self.form)
        self.weights: dict[str, Tensor] = {}
        self.step = 0  # of the next update
        self.version = 0  # of the model it holds
        self.settled = -1  # the last step that was accepted
        self.have = 0  # changes of the model it was given since it joined
        self.accepted = self.refused = self.skipped = 0
        self.unanswered: Message | None = None

    def join(self) -> Message:
        return Message("join", self.name, self.step, fields={"form": self.form, "settled": self.settled})

    def welcomed(self, reply: Message) -> None:
        if reply.kind != "welcome":
            raise ProtocolError(f"{self.name} asked to join: {said(reply)}")
        self.weights = read_dense(reply.payload, self.layers)
        self.version, self.have = told(reply, "version"), 0
        self.step = max(self.step, told(reply, "step"))
        if reply.fields["reset"]:
            self.uplink.reset()
            self.settled = -1

    def pull(self) -> Message:
        return Message("pull", self.name, self.step, fields={"have": self.have})

    def begin(self, reply: Message) -> bool:
        """Take the model over; False if the server says wait, or (see `serving`) that this worker must join again."""
        if reply.kind != "model":
            return False
        if self.changes is None:
            self.weights = read_dense(reply.payload, self.layers)
        else:
            self.weights = self.changes.added(self.weights, reply.payload, self.name, self.have)
            self.have += 1
        self.version = told(reply, "version")
        return True

    def push(self, gradients: Mapping[str, Tensor]) -> Message | None:
        """The next update; None if it holds NaN or infinity: then nothing is sent and nothing is remembered."""
        payload = self.uplink.encode(gradients, self.step)
        if payload is None:
            self.skipped += 1
            return None
        fields: dict[str, Field] = {"form": self.digest, "version": self.version}
        self.unanswered = Message("push", self.name, self.step, fields=fields, payload=payload)
        return self.unanswered

    def settle(self, reply: Message, keep_refused: bool = True) -> bool:
        """Commit the memory if the server accepted; else it stays, and takes a late update's gradient in."""
        accepted = reply.kind == "accepted"
        self.uplink.settle(accepted, keep_it=keep_refused)
        self.unanswered = None
        if accepted:
            self.settled = self.step
        self.accepted, self.refused = self.accepted + accepted, self.refused + (not accepted)
        self.step += 1
        return accepted

    def give_up(self) -> None:
        """The last update will not be answered. Say so only if it cannot have arrived; else ask again."""
        if self.unanswered is not None:
            self.uplink.settle(accepted=False, keep_it=True)
            self.unanswered = None
            self.step += 1

    def state_dict(self) -> dict[str, Any]:
        numbers = ("step", "version", "settled", "have", "accepted", "refused", "skipped")
        return {
            "weights": dict(self.weights),
            "uplink": self.uplink.state_dict(),
            "numbers": {name: getattr(self, name) for name in numbers},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.uplink.exchanger.load_state_dict(state["uplink"])
        self.weights = {name: tensor.clone() for name, tensor in state["weights"].items()}
        for name, value in state["numbers"].items():
            setattr(self, name, value)


def said(reply: Message) -> str:
    """A reply as part of an error text."""
    return f"the server said {reply.kind}" + (f": {reply.fields.get('text')}" if reply.kind == "refused" else "")
