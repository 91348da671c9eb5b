"""A client of a `FederatedServer` (FedAvg, McMahan et al., 2017): trains locally and sends start - end weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..core import Field, Message, TensorSpec
from .client_base import ClientBase
from .config import encode_config
from .downlink import read_dense, split_changes
from .uplink import Composition


class FederatedClient(ClientBase):
    """Sends the change of its weights by local training in each round for which it is sampled."""

    NUMBERS = ("model_round", "round", "last_accepted")

    def __init__(
        self,
        name: str,
        layers: Sequence[TensorSpec],
        composition: Composition = "dense()",
        downlink_compression: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(name, layers, composition, downlink_compression, seed)
        self.model_round = -1  # round of the model it holds
        self.round = -1  # the round it trains in

    def join(self) -> Message:
        """The message that joins the server."""
        fields: dict[str, Field] = {"last_accepted": self.last_accepted}
        return Message("join", self.name, 0, 0, fields, encode_config(self.config))

    def handle_welcome(self, reply: Message) -> None:
        """Take over the answer to `join`."""
        super().handle_welcome(reply)
        self.model_round = -1  # an earlier server may have had another model of the same round

    def pull(self) -> Message:
        """The message that requests work."""
        fields: dict[str, Field] = {"model_round": self.model_round, "server_epoch": self.server_epoch}
        return Message("pull", self.name, max(0, self.round), fields=fields)

    def begin(self, reply: Message) -> bool:
        """Take over the model of the round; False if there is nothing to do (now: `wait`, any more: `done`)."""
        if reply.kind != "train":
            return False
        if reply.fields["is_full"]:
            self.weights = read_dense(reply.payload, self.layers)
        elif self.downlink is not None:
            for round, change in split_changes(reply.payload, self.downlink, self.model_round + 1, reply.round):
                self.weights = self.downlink.apply(self.weights, change, round)
        self.model_round = self.round = reply.round
        return True

    def push(self, trained: Mapping[str, Tensor], examples: int) -> Message | None:
        """The message with the change of the weights; None if it is not finite: then send `skip`."""
        change = {name: self.weights[name] - trained[name].detach() for name in self.weights}
        payload = self.encode(change, self.round)
        if payload is None:
            return None
        fields: dict[str, Field] = {
            "config": self.digest, "examples": examples, "last_accepted": self.last_accepted,
        }  # fmt: skip
        self.unanswered = Message("push", self.name, self.round, 0, fields, payload)
        return self.unanswered

    def skip(self) -> Message:
        """The message that this client has no update in this round, with the reason."""
        reason = f"training gave NaN or infinity in {self.bad_layers[:3]}"
        return Message("skip", self.name, self.round, fields={"reason": reason[:200]})

    def settle(self, reply: Message, keep_rejected: bool = False) -> bool:
        """Commit the memory if the update was accepted.

        keep_rejected: add a rejected change to the residual. Not by default: the change started from a model that is
        old by the time this client is sampled again.
        """
        is_accepted = reply.kind == "accepted"
        self.uplink.settle(is_accepted, keep_rejected)
        self.unanswered = None
        if is_accepted:
            self.last_accepted = self.round
        return is_accepted
