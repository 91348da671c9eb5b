"""The tables of a report: measured figures and, separately, modelled ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .scales import format_number, format_seconds, to_finite
from .seeds import Run, Spread, compute_spread, format_seeds, format_spread

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
    """One cell: its text, its sort key, and its tooltip."""

    text: str
    order: float | str | None = None
    tooltip: str = ""
    side: str = "number"
    under: tuple[tuple[str, str], ...] = ()  # (tag, text) below the cell: a composition, a standard deviation


class ReportTable(NamedTuple):
    title: str
    note: str
    columns: list[tuple[str, str]]  # title, "number" or "words"
    rows: list[list[Cell]]


class TargetLevel(NamedTuple):
    """The metric and value that runs should reach."""

    metric: str
    value: float

    def __str__(self) -> str:
        return f"{100 * self.value:g} %" if self.metric == "accuracy" else format_number(self.value)


def read_description(result: Mapping[str, Any]) -> str:
    """Return what was run; results of old versions have it under "about"."""
    return str(result.get("description") or result.get("about") or "")


def read_target(result: Mapping[str, Any]) -> TargetLevel | None:
    """Return the target of a result; old versions wrote "measure" or, before that, only a loss."""
    target = result.get("target")
    if target:
        return TargetLevel(str(target.get("metric") or target["measure"]), float(target["value"]))
    loss = to_finite(result.get("target_loss"))
    return None if loss is None else TargetLevel("loss", loss)


def choose_sent_key(members: Mapping[str, Sequence[Run]]) -> str:
    """Return the key that savings are computed from: wire bytes, or payload bytes where nothing crossed a wire."""
    wired = any(to_finite(run["final"].get("wire_bytes")) for runs in members.values() for run in runs)
    return "wire_bytes" if wired else "payload_bytes"


def find_dense_bytes(members: Mapping[str, Sequence[Run]]) -> float | None:
    """Return the mean bytes of a group's dense run, or None if there is none.

    The dense run has the word in its composition or label; of several the shortest composition is taken, so that
    `dense()` is chosen rather than `local(sync_every=8)`.
    """
    named = [
        runs
        for label, runs in members.items()
        if re.search(r"\bdense\b", f"{runs[0]['composition']} {label}", re.IGNORECASE)
    ]
    if not named:
        return None
    return summarize_final(min(named, key=lambda runs: len(runs[0]["composition"])), choose_sent_key(members)).mean


def format_saving(dense: float | None, own: float | None) -> str:
    """Format dense bytes / own bytes as 12.3×; a dash if either is unknown or nothing was sent."""
    if dense is None or not own:
        return "–"
    saving = dense / own
    return f"{saving:,.0f}×" if saving >= 100 else f"{saving:.3g}×"


def summarize_final(runs: Sequence[Run], key: str) -> Spread:
    """Return the statistics of final values; "best accuracy" is the best value of each seed's curve."""
    if key.startswith("best "):
        return compute_spread([run.get("best", {}).get(key[5:]) for run in runs])
    return compute_spread([run["final"].get(key) for run in runs])


def build_group_table(title: str, members: Mapping[str, Sequence[Run]], target: TargetLevel | None) -> ReportTable:
    """Return the table of one group: a row per method, with statistics over its seeds."""
    measured = any(any(map(_is_known, summarize_final(runs, "loss").values)) for runs in members.values())
    sent = choose_sent_key(members)
    shown = [
        column
        for column in FINAL
        if column[0] in ALWAYS
        or any(any(map(_is_known, summarize_final(r, column[0]).values)) for r in members.values())
        if column[0] != "train_loss" or not measured  # one loss is enough here; the charts have both
        if column[0] != "wire_bytes" or sent == "wire_bytes"
    ]
    timed = any(_is_known(run["final"].get("seconds")) for runs in members.values() for run in runs)
    dense = find_dense_bytes(members)
    rows = []
    for label, runs in members.items():
        row = [build_method_cell(label, runs)]
        for key, _, unit in shown:
            row.append(build_spread_cell(summarize_final(runs, key), unit))
        own = summarize_final(runs, sent).mean
        row.append(Cell(format_saving(dense, own), dense / own if dense and own else None))
        if timed:
            row.append(build_spread_cell(summarize_final(runs, "seconds"), "seconds"))
        if target:
            row.append(build_spread_cell(compute_spread([run.get("steps_to_target") for run in runs]), "steps"))
        rows.append(row)
    measure = target and {key: name for key, name, _ in FINAL}.get(target.metric, target.metric.replace("_", " "))
    steps = [f"steps to {measure} {target}"] if target else []
    names = [name for _, name, _ in shown] + ["saving"] + (["time"] if timed else []) + steps
    return ReportTable(title, "", [("method", "words"), *((name, "number") for name in names)], rows)


def build_method_cell(label: str, runs: Sequence[Run]) -> Cell:
    under = [("code", runs[0]["composition"])]
    dense = runs[0].get("dense_layers", [])
    if dense:
        under.append(("small", f"sent dense, because factors would be longer: {', '.join(dense)}"))
    return Cell(label, label, side="method", under=tuple(under))


def build_spread_cell(found: Spread, unit: str) -> Cell:
    mean, deviation = format_spread(found, unit)
    return Cell(mean, found.mean, format_seeds(found, unit), under=(("small", deviation),) if deviation else ())


def _is_known(value: object) -> bool:
    return to_finite(value) is not None


def group_modelled(result: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the modelled entries of a result by group."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in result.get("modelled") or []:
        groups.setdefault(entry["group"], []).append(entry)
    return groups


def build_modelled_table(title: str, entries: Sequence[Mapping[str, Any]]) -> ReportTable:
    """Return the modelled step times of one group: a row per method, a column per link."""
    links = list(dict.fromkeys(entry["link"] for entry in entries))
    rows = []
    for label in dict.fromkeys(entry["label"] for entry in entries):
        by_link = {entry["link"]: entry for entry in entries if entry["label"] == label}
        rows.append([Cell(label, label, side="method"), *(_modelled_cell(by_link.get(link)) for link in links)])
    columns = [("method", "words"), *((f"modelled step, {link}", "number") for link in links)]
    return ReportTable(title, "", columns, rows)


def _modelled_cell(entry: Mapping[str, Any] | None) -> Cell:
    if entry is None:
        return Cell("–")
    parts = {name: to_finite(entry.get(f"{name}_s")) for name in ("compute", "transfer")}
    tooltip = ", ".join(f"{name} {format_seconds(value)}" for name, value in parts.items() if value is not None)
    step = to_finite(entry.get("step_s"))
    return Cell(format_seconds(step), step, tooltip)
