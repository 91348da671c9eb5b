"""A client of a federation: its copy of the model, the memory of its compressor, and what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..core import Field, Message, TensorSpec
from .downlink import cut_changes, read_dense
from .party import Party
from .uplink import Composition, form_payload


class FederatedClient(Party):
    """It sends start - end of its local training."""

    NUMBERS = ("have", "round", "settled")

    def __init__(
        self,
        name: str,
        layers: Sequence[TensorSpec],
        exchange: Composition = "dense()",
        down: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(name, layers, exchange, down, seed)
        self.have = -1  # the round whose model it holds
        self.round = -1  # the round it works in

    def join(self) -> Message:
        return Message("join", self.name, 0, 0, {"settled": self.settled}, form_payload(self.form))

    def welcomed(self, reply: Message) -> None:
        super().welcomed(reply)
        self.have = -1  # of this server's rounds, that is: the one before it may have had others of these numbers

    def pull(self) -> Message:
        return Message("pull", self.name, max(0, self.round), fields={"have": self.have, "life": self.life})

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
        """What local training changed; None if it holds NaN or infinity: then `skip` says so to the server."""
        change = {name: self.weights[name] - trained[name].detach() for name in self.weights}
        payload = self.encoded(change, self.round)
        if payload is None:
            return None
        fields: dict[str, Field] = {"form": self.digest, "examples": examples, "settled": self.settled}
        self.unanswered = Message("push", self.name, self.round, 0, fields, payload)
        return self.unanswered

    def skip(self) -> Message:
        """This client has no update for this round, and why; the round need not wait for it."""
        reason = f"training gave NaN or infinity in {self.bad_layers[:3]}"
        return Message("skip", self.name, self.round, fields={"reason": reason[:200]})

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
