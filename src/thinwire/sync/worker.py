"""A worker of a `GradientServer`: the messages it sends and how it handles the replies. `serving` has the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..core import Field, Message, TensorSpec
from .client_base import ClientBase
from .config import encode_config
from .downlink import read_dense
from .messages import require_int
from .uplink import Composition


class GradientWorker(ClientBase):
    """Sends a gradient of the model it holds in each step."""

    NUMBERS = ("step", "version", "last_accepted", "changes_received", "accepted", "rejected", "skipped")

    def __init__(
        self,
        name: str,
        layers: Sequence[TensorSpec],
        composition: Composition = "dense()",
        downlink_compression: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(name, layers, composition, downlink_compression, seed)
        self.step = 0  # of the next update
        self.version = 0  # of the model it holds
        self.changes_received = 0  # compressed changes of the model since it joined
        self.accepted = self.rejected = self.skipped = 0

    def join(self) -> Message:
        """The message that joins the server."""
        fields: dict[str, Field] = {"last_accepted": self.last_accepted}
        return Message("join", self.name, self.step, 0, fields, encode_config(self.config))

    def handle_welcome(self, reply: Message) -> None:
        """Take over the model and the step number from the answer to `join`."""
        super().handle_welcome(reply)
        self.weights = read_dense(reply.payload, self.layers)
        self.version, self.changes_received = require_int(reply, "version"), 0
        self.step = max(self.step, require_int(reply, "step"))

    def pull(self) -> Message:
        """The message that requests the model."""
        fields: dict[str, Field] = {"changes_received": self.changes_received, "server_epoch": self.server_epoch}
        return Message("pull", self.name, self.step, fields=fields)

    def begin(self, reply: Message) -> bool:
        """Take over the model; False if the worker has to wait, or (see `serving`) to join again."""
        if reply.kind != "model":
            return False
        if self.downlink is None:
            self.weights = read_dense(reply.payload, self.layers)
        else:
            self.weights = self.downlink.apply(self.weights, reply.payload, self.name, self.changes_received)
            self.changes_received += 1
        self.version = require_int(reply, "version")
        return True

    def push(self, gradients: Mapping[str, Tensor]) -> Message | None:
        """The message with the next update; None if the gradients are not finite: then the memory is unchanged."""
        payload = self.encode(gradients, self.step)
        if payload is None:
            self.skipped += 1
            return None
        fields: dict[str, Field] = {
            "config": self.digest, "version": self.version, "last_accepted": self.last_accepted,
        }  # fmt: skip
        self.unanswered = Message("push", self.name, self.step, fields=fields, payload=payload)
        return self.unanswered

    def settle(self, reply: Message, keep_rejected: bool = True) -> bool:
        """Commit the memory if the update was accepted; else a rejected gradient is added to the residual."""
        is_accepted = reply.kind == "accepted"
        self.uplink.settle(is_accepted, keep_rejected)
        self.unanswered = None
        if is_accepted:
            self.last_accepted = self.step
        self.accepted, self.rejected = self.accepted + is_accepted, self.rejected + (not is_accepted)
        self.step += 1
        return is_accepted

    def give_up(self) -> None:
        """Treat the last update as rejected. Only if it cannot have arrived; otherwise send it again."""
        if self.unanswered is not None:
            self.uplink.settle(is_accepted=False, keep_rejected=True)
            self.unanswered = None
            self.step += 1
