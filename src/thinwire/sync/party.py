"""What every correspondent of a server has: its copy of the model, its compressor's memory, the form both agree on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from ..catalog import part_text
from ..core import Message, NonFiniteError, Payload, ProtocolError, TensorSpec, all_finite
from .downlink import Changes
from .uplink import Composition, Uplink, digest_of, form_of, part_of


class Party:
    """Base of `Worker` and `FederatedClient`. Its memory changes only when an update was accepted."""

    NUMBERS: ClassVar[tuple[str, ...]]  # attributes that are stored beside weights and memory

    def __init__(
        self,
        name: str,
        layers: Sequence[TensorSpec],
        exchange: Composition = "dense()",
        down: str | None = None,
        seed: int = 0,
    ) -> None:
        self.name, self.layers = name, list(layers)
        self.uplink = Uplink(layers, exchange, name, seed)
        self.changes = None if down is None else Changes(layers, down, seed)
        self.form = form_of(layers, part_text(part_of(exchange)), self.changes.text if self.changes else "dense")
        self.digest = digest_of(self.form)
        self.weights: dict[str, Tensor] = {}
        self.life = ""  # of the server that welcomed it
        self.run = ""  # of the training that server holds
        self.settled = -1  # the last update that was accepted: its step or round
        self.unanswered: Message | None = None
        self.bad_in_a_row = 0  # updates with a NaN or an infinity since the last good one
        self.bad_layers: list[str] = []  # of the last of them

    def welcomed(self, reply: Message) -> None:
        if reply.kind != "welcome":
            raise ProtocolError(f"{self.name} asked to join: {said(reply)}")
        self.life, self.run = str(reply.fields.get("life")), str(reply.fields.get("run"))
        if reply.fields.get("reset"):  # one side has lost its memory, so both begin anew
            self.uplink.reset()
            self.settled = -1

    def encoded(self, tensors: Mapping[str, Tensor], step: int) -> Payload | None:
        """What is sent of them; None if they hold NaN or infinity: then `bad_layers` names where."""
        payload = self.uplink.encode(tensors, step)
        self.bad_layers = [] if payload is not None else [n for n, t in tensors.items() if not all_finite(t)]
        self.bad_in_a_row = 0 if payload is not None else self.bad_in_a_row + 1
        return payload

    def check_bad(self, most: int, unit: str) -> None:
        """Too many bad updates in a row are an error: this party would go on in vain for ever."""
        if most and self.bad_in_a_row >= most:
            raise NonFiniteError(
                f"{self.name}: NaN or infinity in {most} {unit}s in a row, the last in {self.bad_layers[:3]}; "
                f"lower the learning rate, clip gradients, or raise most_bad_{unit}s (0: never stop)"
            )

    def state_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in self.NUMBERS}
        return {"weights": dict(self.weights), "uplink": self.uplink.state_dict(), "numbers": numbers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.uplink.exchanger.load_state_dict(state["uplink"])
        self.weights = {name: tensor.clone() for name, tensor in state["weights"].items()}
        for name in self.NUMBERS:
            setattr(self, name, state["numbers"][name])


def said(reply: Message) -> str:
    """A reply as part of an error text."""
    return f"the server said {reply.kind}" + (f": {reply.fields.get('text')}" if reply.kind == "refused" else "")
