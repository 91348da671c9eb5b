"""Base of a server's workers and clients: the copy of the model, the memory of the compressor, the common config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from ..catalog import part_text
from ..core import Message, NonFiniteError, Payload, ProtocolError, TensorSpec, all_finite
from .config import describe_config, digest_config
from .downlink import DownlinkCodec
from .uplink import Composition, Uplink, parse_composition


class ClientBase:
    """Base of `GradientWorker` and `FederatedClient`. Its memory changes only when an update was accepted.

    Args:
        name: under which the server knows it.
        layers: of the model.
        composition: what updates are sent through.
        downlink_compression: a compressor for the model; None: the whole model is sent.
        seed: of random compressors, the same as the server's.
    """

    NUMBERS: ClassVar[tuple[str, ...]]  # attributes that are stored beside weights and memory

    def __init__(
        self,
        name: str,
        layers: Sequence[TensorSpec],
        composition: Composition = "dense()",
        downlink_compression: str | None = None,
        seed: int = 0,
    ) -> None:
        self.name, self.layers = name, list(layers)
        self.uplink = Uplink(layers, composition, name, seed)
        self.downlink = None if downlink_compression is None else DownlinkCodec(layers, downlink_compression, seed)
        text = part_text(parse_composition(composition))
        self.config = describe_config(layers, text, self.downlink.text if self.downlink else "dense")
        self.digest = digest_config(self.config)
        self.weights: dict[str, Tensor] = {}
        self.server_epoch = ""  # of the server that it has joined
        self.run_id = ""  # of the training of that server
        self.last_accepted = -1  # step or round of the last accepted update
        self.unanswered: Message | None = None
        self.bad_in_a_row = 0  # updates with a NaN or an infinity since the last good one
        self.bad_layers: list[str] = []  # of the last of them

    def handle_welcome(self, reply: Message) -> None:
        """Take over the answer to `join`."""
        if reply.kind != "welcome":
            raise ProtocolError(f"{self.name} tried to join: {describe_reply(reply)}")
        self.server_epoch, self.run_id = str(reply.fields.get("server_epoch")), str(reply.fields.get("run_id"))
        if reply.fields.get("reset"):  # one side has lost its memory, so both start again
            self.uplink.reset()
            self.last_accepted = -1

    def encode(self, tensors: Mapping[str, Tensor], step: int) -> Payload | None:
        """The payload of an update; None if the tensors are not finite: then `bad_layers` has their names."""
        payload = self.uplink.encode(tensors, step)
        self.bad_layers = [] if payload is not None else [n for n, t in tensors.items() if not all_finite(t)]
        self.bad_in_a_row = 0 if payload is not None else self.bad_in_a_row + 1
        return payload

    def check_bad_updates(self, max_bad: int, unit: str) -> None:
        """Raise NonFiniteError after `max_bad` bad updates in a row; 0: never. unit: "step" or "round"."""
        if max_bad and self.bad_in_a_row >= max_bad:
            raise NonFiniteError(
                f"{self.name}: NaN or infinity in {max_bad} {unit}s in a row, the last in {self.bad_layers[:3]}; "
                f"lower the learning rate, clip gradients, or raise max_bad_{unit}s (0: never stop)"
            )

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume with the same next update."""
        numbers = {name: getattr(self, name) for name in self.NUMBERS}
        return {"weights": dict(self.weights), "uplink": self.uplink.state_dict(), "numbers": numbers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a stored state."""
        self.uplink.exchanger.load_state_dict(state["uplink"])
        self.weights = {name: tensor.clone() for name, tensor in state["weights"].items()}
        for name in self.NUMBERS:
            setattr(self, name, state["numbers"][name])


def describe_reply(reply: Message) -> str:
    """A reply as part of an error text."""
    text = f": {reply.fields.get('text')}" if reply.kind == "rejected" else ""
    return f"the server answered {reply.kind!r}{text}"
