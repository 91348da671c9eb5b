"""Byte counts of one rank, by step, collective, layer and kind of data, recorded by the driver that sends them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from ..core import Label, Request, World

OLDER = -1  # the step of rows that sum up all steps older than `keep_steps`


class TrafficKey(NamedTuple):
    """What a row of traffic belongs to."""

    step: int
    collective: str
    layer: str
    kind: str


@dataclass
class Traffic:
    """Traffic of one rank.

    payload_bytes are what the rank contributes to a collective, counted once; sent_bytes and received_bytes are what
    the collective sends and receives for it. A request is counted in the row of its header, so that a request for many
    layers counts once.
    """

    requests: int = 0
    model_bits: float = 0.0
    payload_bytes: float = 0.0
    sent_bytes: float = 0.0
    received_bytes: float = 0.0

    def add(self, other: Traffic) -> None:
        """Add the counts of another traffic to these."""
        self.requests += other.requests
        self.model_bits += other.model_bits
        self.payload_bytes += other.payload_bytes
        self.sent_bytes += other.sent_bytes
        self.received_bytes += other.received_bytes


class _Record(NamedTuple):
    """One request as it was counted."""

    step: int
    collective: str
    labels: Sequence[Label]
    contributes: bool
    sums: tuple[int, int, int, int]  # data sent and received, headers sent and received


_MAX_RECORDS = 256  # held back before they are added to the rows
HEADER = "header"  # the kind of the bytes that a driver adds: request headers and lengths of parts


class Meter:
    """Traffic of one rank by step, collective, layer and kind, taken from the labels of the requests.

    Rows of the last `keep_steps` steps are kept; older ones are merged, so that memory stays bounded in a long run.
    """

    def __init__(self, keep_steps: int = 100) -> None:
        self.keep_steps = keep_steps
        self._rows: dict[TrafficKey, Traffic] = {}
        self._steps: dict[int, list[TrafficKey]] = {}  # rows that are not merged yet, by step
        self._lock = threading.RLock()  # several channels record
        self._records: list[_Record] = []  # not in the rows yet: a step need not wait for that

    @property
    def rows(self) -> dict[TrafficKey, Traffic]:
        """All rows."""
        self._settle()
        return self._rows

    def record(
        self, request: Request, world: World, sent: int, received: int, header_sent: int, header_received: int
    ) -> None:
        """Record one request: the bytes of its data that were sent and received, and those of its headers."""
        if not request.on_wire:
            return
        labels = request.labels or (Label("", "values", 0, 0.0),)
        sums = (sent, received, header_sent, header_received)
        record = _Record(request.step, type(request).__name__, labels, request.contributes(world), sums)
        with self._lock:
            self._records.append(record)
        if len(self._records) >= _MAX_RECORDS:
            self._settle()

    def _settle(self) -> None:
        """Move the records to the rows."""
        with self._lock:
            self._move_records()

    def _move_records(self) -> None:
        records, self._records = self._records, []
        for step, collective, labels, contributes, (sent, received, *headers) in records:
            total = sum([label.num_bytes for label in labels])
            for layer, kind, num_bytes, bits in labels:
                share = num_bytes / total if total else 1 / len(labels)
                traffic = Traffic(0, bits * contributes, num_bytes * contributes, share * sent, share * received)
                self._add(TrafficKey(step, collective, layer, kind), traffic)
            self._add(TrafficKey(step, collective, "", HEADER), Traffic(1, 0.0, 0.0, *headers))
            self._merge_old()

    def total(self) -> Traffic:
        """The sum of all rows."""
        return self.sum_by("all").get("all", Traffic())

    def sum_by(self, field: str) -> dict[str | int, Traffic]:
        """Sums by "step", "collective", "layer" or "kind"; "all" gives one row."""
        sums: dict[str | int, Traffic] = {}
        for key, traffic in self.rows.items():
            group = "all" if field == "all" else getattr(key, field)
            sums.setdefault(group, Traffic()).add(traffic)
        return sums

    def state_dict(self) -> dict[str, Any]:
        """All rows, so that a meter that loads them continues with the same counts."""
        rows = [[*key, *(getattr(traffic, f.name) for f in fields(traffic))] for key, traffic in self.rows.items()]
        return {"rows": rows, "steps": list(self._steps)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the rows of a stored meter."""
        width = len(TrafficKey._fields)
        self._records = []
        self._rows = {TrafficKey(*row[:width]): Traffic(*row[width:]) for row in state["rows"]}
        self._steps = {step: [] for step in state["steps"]}
        for key in self._rows:
            if key.step in self._steps:
                self._steps[key.step].append(key)

    def _add(self, key: TrafficKey, traffic: Traffic) -> None:
        row = self._rows.get(key)
        if row is not None:
            row.add(traffic)
            return
        self._rows[key] = traffic
        if key.step != OLDER:
            self._steps.setdefault(key.step, []).append(key)

    def _merge_old(self) -> None:
        while len(self._steps) > self.keep_steps:
            for key in self._steps.pop(next(iter(self._steps))):
                self._add(key._replace(step=OLDER), self._rows.pop(key))
