"""A worker of a server: what it says, and what it makes of the replies. The loop around it is in `serving`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..core import Field, Message, TensorSpec
from .downlink import read_dense
from .messages import told
from .party import Party
from .uplink import Composition, form_payload


class Worker(Party):
    """It sends a gradient of the model it holds, step after step."""

    NUMBERS = ("step", "version", "settled", "have", "accepted", "refused", "skipped")

    def __init__(
        self,
        name: str,
        layers: Sequence[TensorSpec],
        exchange: Composition = "dense()",
        down: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(name, layers, exchange, down, seed)
        self.step = 0  # of the next update
        self.version = 0  # of the model it holds
        self.have = 0  # changes of the model it was given since it joined
        self.accepted = self.refused = self.skipped = 0

    def join(self) -> Message:
        return Message("join", self.name, self.step, 0, {"settled": self.settled}, form_payload(self.form))

    def welcomed(self, reply: Message) -> None:
        super().welcomed(reply)
        self.weights = read_dense(reply.payload, self.layers)
        self.version, self.have = told(reply, "version"), 0
        self.step = max(self.step, told(reply, "step"))

    def pull(self) -> Message:
        return Message("pull", self.name, self.step, fields={"have": self.have, "life": self.life})

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
        payload = self.encoded(gradients, self.step)
        if payload is None:
            self.skipped += 1
            return None
        fields: dict[str, Field] = {"form": self.digest, "version": self.version, "settled": self.settled}
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
