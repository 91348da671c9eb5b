"""The tables of the page: what was measured and, apart from it, what was modelled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .scales import finite, format_number, format_seconds
from .seeds import Run, Spread, spread, tell_seeds, write_spread

# (key in "final", title, unit); a column that no method of a group has is left out
FINAL = (
    ("loss", "loss", "number"),
    ("train_loss", "training loss", "number"),
    ("accuracy", "accuracy", "percent"),
    ("best accuracy", "best accuracy", "percent"),
    ("perplexity", "perplexity", "number"),
    ("payload_bytes", "payload bytes", "bytes"),
    ("wire_bytes", "wire bytes", "bytes"),
)
ALWAYS = ("payload_bytes", "wire_bytes", "loss")


class Cell(NamedTuple):
    """One cell: what is read, what it is sorted by, and what is told to who points at it."""

    text: str
    order: float | str | None = None
    more: str = ""
    side: str = "number"
    under: tuple[tuple[str, str], ...] = ()  # (tag, text) below it: a composition, a standard deviation


class Table(NamedTuple):
    title: str
    note: str
    columns: list[tuple[str, str]]  # title, "number" or "words"
    rows: list[list[Cell]]


class Target(NamedTuple):
    """What a run is to reach."""

    measure: str
    value: float

    def __str__(self) -> str:
        return f"{100 * self.value:g} %" if self.measure == "accuracy" else format_number(self.value)


def target_of(result: Mapping[str, Any]) -> Target | None:
    """Return the target of a result; old ones have a loss only."""
    given = result.get("target")
    if given:
        return Target(str(given["measure"]), float(given["value"]))
    loss = finite(result.get("target_loss"))
    return None if loss is None else Target("loss", loss)


def sent_key(members: Mapping[str, Sequence[Run]]) -> str:
    """Return what savings are taken of: wire bytes; in a world of one, where nothing crosses a wire, payload bytes."""
    wired = any(finite(run["final"].get("wire_bytes")) for runs in members.values() for run in runs)
    return "wire_bytes" if wired else "payload_bytes"


def dense_bytes(members: Mapping[str, Sequence[Run]]) -> float | None:
    """Return the mean bytes of a group's dense run, or None if there is none.

    Dense is the run that says so in its composition or label; of several the shortest composition, as
    `dense` is meant rather than `local(dense, steps=8)`.
    """
    named = [
        runs
        for label, runs in members.items()
        if re.search(r"\bdense\b", f"{runs[0]['composition']} {label}", re.IGNORECASE)
    ]
    if not named:
        return None
    return final_spread(min(named, key=lambda runs: len(runs[0]["composition"])), sent_key(members)).mean


def format_saving(dense: float | None, own: float | None) -> str:
    """Write dense bytes / own bytes, as 12.3×; a dash if either is unknown or nothing was sent."""
    if dense is None or not own:
        return "–"
    saving = dense / own
    return f"{saving:,.0f}×" if saving >= 100 else f"{saving:.3g}×"


def final_spread(runs: Sequence[Run], key: str) -> Spread:
    """Return what the seeds ended with; "best accuracy" is the best each one had on its way."""
    if key.startswith("best "):
        return spread([run.get("best", {}).get(key[5:]) for run in runs])
    return spread([run["final"].get(key) for run in runs])


def headline(title: str, members: Mapping[str, Sequence[Run]], target: Target | None) -> Table:
    """Return the table of one group: a row per method, with its seeds together."""
    measured = any(any(map(_is_known, final_spread(runs, "loss").values)) for runs in members.values())
    sent = sent_key(members)
    shown = [
        column
        for column in FINAL
        if column[0] in ALWAYS or any(any(map(_is_known, final_spread(r, column[0]).values)) for r in members.values())
        if column[0] != "train_loss" or not measured  # one loss is enough here; the charts have both
        if column[0] != "wire_bytes" or sent == "wire_bytes"
    ]
    timed = any(_is_known(run["final"].get("seconds")) for runs in members.values() for run in runs)
    dense = dense_bytes(members)
    rows = []
    for label, runs in members.items():
        row = [method_cell(label, runs)]
        for key, _, unit in shown:
            row.append(spread_cell(final_spread(runs, key), unit))
        own = final_spread(runs, sent).mean
        row.append(Cell(format_saving(dense, own), dense / own if dense and own else None))
        if timed:
            row.append(spread_cell(final_spread(runs, "seconds"), "seconds"))
        if target:
            row.append(spread_cell(spread([run.get("steps_to_target") for run in runs]), "steps"))
        rows.append(row)
    measure = target and {key: name for key, name, _ in FINAL}.get(target.measure, target.measure.replace("_", " "))
    steps = [f"steps to {measure} {target}"] if target else []
    names = [name for _, name, _ in shown] + ["saving"] + (["time"] if timed else []) + steps
    return Table(title, "", [("method", "words"), *((name, "number") for name in names)], rows)


def method_cell(label: str, runs: Sequence[Run]) -> Cell:
    under = [("code", runs[0]["composition"])]
    dense = runs[0].get("dense_layers", [])
    if dense:
        under.append(("small", f"sent dense, since factors would be longer: {', '.join(dense)}"))
    return Cell(label, label, side="method", under=tuple(under))


def spread_cell(found: Spread, unit: str) -> Cell:
    mean, more = write_spread(found, unit)
    return Cell(mean, found.mean, tell_seeds(found, unit), under=(("small", more),) if more else ())


def _is_known(value: object) -> bool:
    return finite(value) is not None


def modelled_groups(result: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the modelled entries of a result by group."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in result.get("modelled") or []:
        groups.setdefault(entry["group"], []).append(entry)
    return groups


def modelled_table(title: str, entries: Sequence[Mapping[str, Any]]) -> Table:
    """Return what a step of one group is expected to take: a row per method, a column per link."""
    links = list(dict.fromkeys(entry["link"] for entry in entries))
    rows = []
    for label in dict.fromkeys(entry["label"] for entry in entries):
        by_link = {entry["link"]: entry for entry in entries if entry["label"] == label}
        rows.append([Cell(label, label, side="method"), *(_modelled_cell(by_link.get(link)) for link in links)])
    columns = [("method", "words"), *((f"modelled step, {link}", "number") for link in links)]
    return Table(title, "", columns, rows)


def _modelled_cell(entry: Mapping[str, Any] | None) -> Cell:
    if entry is None:
        return Cell("–")
    parts = {name: finite(entry.get(f"{name}_s")) for name in ("compute", "transfer")}
    more = ", ".join(f"{name} {format_seconds(value)}" for name, value in parts.items() if value is not None)
    step = finite(entry.get("step_s"))
    return Cell(format_seconds(step), step, more)
