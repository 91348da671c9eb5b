"""Bytes, counted where they are sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from ..core import Label, Request, World

OLDER = -1


class Where(NamedTuple):
    """Whose traffic it is; the step OLDER stands for all steps older than the meter remembers one by one."""

    step: int
    collective: str
    layer: str
    kind: str


@dataclass
class Traffic:
    """One rank's traffic. Payload bytes are handed over once; wire bytes are what the collective makes of them.

    Requests are counted with their headers, so that a request of many layers counts once.
    """

    requests: int = 0
    model_bits: float = 0.0
    payload_bytes: float = 0.0
    sent_bytes: float = 0.0
    received_bytes: float = 0.0

    def add(self, other: Traffic) -> None:
        self.requests += other.requests
        self.model_bits += other.model_bits
        self.payload_bytes += other.payload_bytes
        self.sent_bytes += other.sent_bytes
        self.received_bytes += other.received_bytes


HEADER = "header"  # the kind of what a driver adds: agreement headers and lengths of parts


class Meter:
    """Traffic of one rank by step, collective, layer and kind; it reads labels and knows no formula.

    Rows of the last `keep_steps` steps are kept apart; older ones are merged, so that a long run does not grow.
    """

    def __init__(self, keep_steps: int = 100) -> None:
        self.rows: dict[Where, Traffic] = {}
        self.keep_steps = keep_steps
        self._steps: dict[int, list[Where]] = {}  # whose rows are kept apart

    def record(
        self, request: Request, world: World, sent: int, received: int, header_sent: int, header_received: int
    ) -> None:
        """One request performed: `sent` and `received` bytes of its data, and those of its headers."""
        if not request.on_wire:
            return
        collective = type(request).__name__
        total = sum([label.num_bytes for label in request.labels])
        gives = request.contributes(world)
        for label in request.labels or (Label("", "values", 0, 0.0),):
            share = label.num_bytes / total if total else 1 / max(1, len(request.labels))
            traffic = Traffic(0, label.model_bits * gives, label.num_bytes * gives, share * sent, share * received)
            self._add(Where(request.step, collective, label.layer, label.kind), traffic)
        self._add(Where(request.step, collective, "", HEADER), Traffic(1, 0.0, 0.0, header_sent, header_received))
        self._merge_old()

    def total(self) -> Traffic:
        return self.by("all").get("all", Traffic())

    def by(self, what: str) -> dict[str | int, Traffic]:
        """Sums by "step", "collective", "layer" or "kind"; "all" gives one row."""
        sums: dict[str | int, Traffic] = {}
        for where, traffic in self.rows.items():
            key = "all" if what == "all" else getattr(where, what)
            sums.setdefault(key, Traffic()).add(traffic)
        return sums

    def state_dict(self) -> dict[str, Any]:
        """All rows, so that a meter that loads them goes on as if it had counted them itself."""
        rows = [[*where, *(getattr(traffic, f.name) for f in fields(traffic))] for where, traffic in self.rows.items()]
        return {"rows": rows, "steps": list(self._steps)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        width = len(Where._fields)
        self.rows = {Where(*row[:width]): Traffic(*row[width:]) for row in state["rows"]}
        self._steps = {step: [] for step in state["steps"]}
        for where in self.rows:
            if where.step in self._steps:
                self._steps[where.step].append(where)

    def _add(self, where: Where, traffic: Traffic) -> None:
        row = self.rows.get(where)
        if row is not None:
            row.add(traffic)
            return
        self.rows[where] = traffic
        if where.step != OLDER:
            self._steps.setdefault(where.step, []).append(where)

    def _merge_old(self) -> None:
        while len(self._steps) > self.keep_steps:
            for where in self._steps.pop(next(iter(self._steps))):
                self._add(where._replace(step=OLDER), self.rows.pop(where))
