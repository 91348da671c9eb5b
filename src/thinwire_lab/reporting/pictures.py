"""Static pictures of a report: time and bytes by kind, bytes and relative error by layer, modelled step times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from thinwire.core import format_bytes

from .bars import Bar, locate_cells, pick_evenly, render_bars, render_heat_map
from .scales import format_seconds, to_finite, to_json_number
from .seeds import Run, average_parts
from .svg import KIND_COLORS

TIMES = ("compute", "encode", "communication", "waiting", "solver", "moments")
MAX_LAYERS, MAX_KINDS = 12, len(KIND_COLORS)


class Picture(NamedTuple):
    """One picture and the figures it was drawn from; `cells` is the layout of a map's cells."""

    name: str
    title: str
    svg: str
    columns: list[str]
    rows: list[list[Any]]
    cells: dict[str, Any] | None = None


def draw_time_bars(name: str, members: Mapping[str, Sequence[Run]]) -> Picture | None:
    """Return the stacked time bars of a group, None if no run has times. Measuring is not counted as training."""
    times = {label: average_parts(runs, "times") for label, runs in members.items()}
    bars = [(label, {part: parts[part] for part in TIMES if part in parts}) for label, parts in times.items() if parts]
    if not bars:
        return None
    used = [part for part in TIMES if any(part in sizes for _, sizes in bars)]
    every = [*used, *(part for part in {p: 0 for t in times.values() for p in t} if part not in used)]
    rows = [
        [label, *(to_json_number(parts.get(part, 0.0)) for part in every)] for label, parts in times.items() if parts
    ]
    title = "Time of all steps by kind"
    svg = render_bars(title, bars, used, format_seconds)
    return Picture(f"{name}-time", title, svg, ["method", *(f"{part}_s" for part in every)], rows)


def draw_kind_bars(name: str, members: Mapping[str, Sequence[Run]]) -> Picture | None:
    """Return the bytes by kind of a group, as shares; methods that sent nothing are left out."""
    sent = {label: average_parts(runs, "bytes_by_kind") for label, runs in members.items()}
    totals: dict[str, float] = {}
    for parts in sent.values():
        for kind, size in parts.items():
            totals[kind] = totals.get(kind, 0.0) + size
    if not totals:
        return None
    kinds = sorted(totals, key=lambda kind: -totals[kind])  # one order for all bars, the small headers last
    title = "Bytes by kind, shares of the total"
    bars = [(label, parts) for label, parts in sent.items() if parts]
    rows = [[label, *(to_json_number(parts.get(kind, 0.0)) for kind in kinds)] for label, parts in bars]
    drawn, shown = (bars, kinds) if len(kinds) <= MAX_KINDS else _with_others(bars, kinds[: MAX_KINDS - 1])
    svg = render_bars(title, drawn, shown, format_bytes, shares=True)
    return Picture(f"{name}-kinds", title, svg, ["method", *kinds], rows)


def _with_others(bars: Sequence[Bar], kinds: Sequence[str]) -> tuple[list[Bar], list[str]]:
    """Combine all other kinds into one, since there are no more colors."""
    folded: list[Bar] = []
    for label, parts in bars:
        known = {kind: parts[kind] for kind in kinds if kind in parts}
        folded.append((label, known | {"other kinds": sum(parts.values()) - sum(known.values())}))
    return folded, [*kinds, "other kinds"]


def draw_layer_bars(name: str, label: str, runs: Sequence[Run]) -> Picture | None:
    """Return the bytes by layer of one method: the largest twelve, and the others together."""
    layers = sorted(average_parts(runs, "bytes_by_layer").items(), key=lambda item: -item[1])
    if len(layers) < 2:  # one layer is the whole model; its bytes are in the table
        return None
    shown = layers[:MAX_LAYERS]
    rest = layers[MAX_LAYERS:]
    if rest:
        shown = [*shown, (f"{len(rest)} other layers", sum(size for _, size in rest))]
    title = f"Bytes by layer: {label}"
    svg = render_bars(title, [(layer, {"bytes": size}) for layer, size in shown], ["bytes"], format_bytes)
    return Picture(
        f"{name}-layers", title, svg, ["layer", "bytes"], [[layer, to_json_number(size)] for layer, size in layers]
    )


def draw_error_map(name: str, label: str, runs: Sequence[Run]) -> Picture | None:
    """Return the map of a method's relative error by layer and step, of the first seed that has one."""
    errors = next((run["heatmap"] for run in runs if run.get("heatmap", {}).get("layers")), None)
    if errors is None:
        return None
    columns = pick_evenly(len(errors["steps"]))
    steps = [errors["steps"][at] for at in columns]
    layers = {layer: [to_finite(values[at]) for at in columns] for layer, values in errors["layers"].items()}
    title = f"Relative error by layer: {label}"
    rows = [
        [layer, errors.get("sizes", {}).get(layer), *map(to_json_number, values)] for layer, values in layers.items()
    ]
    cells = locate_cells(len(steps))
    head = ["layer", "numel", *(f"step {step:g}" for step in steps)]
    return Picture(f"{name}-errors", title, render_heat_map(title, steps, layers), head, rows, cells)


def draw_modelled_bars(name: str, entries: Sequence[Mapping[str, Any]]) -> list[Picture]:
    """Return the modelled step times of one group, a picture per link."""
    by_link: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        by_link.setdefault(entry["link"], []).append(entry)
    columns = ["method", "link", "step_s", "compute_s", "transfer_s"]
    pictures: list[Picture] = []
    for link, found in by_link.items():
        bars = [(entry["label"], _modelled_parts(entry)) for entry in found]
        parts = [part for part in ("compute", "transfer", "step") if any(part in sizes for _, sizes in bars)]
        title = f"Modelled time of a step, {link}"
        rows = [
            [entry["label"], link, *(to_json_number(to_finite(entry.get(key))) for key in columns[2:])]
            for entry in found
        ]
        svg = render_bars(title, bars, parts, format_seconds)
        pictures.append(Picture(f"{name}-{len(pictures)}", title, svg, columns, rows))
    return pictures


def _modelled_parts(entry: Mapping[str, Any]) -> dict[str, float]:
    compute, transfer, step = (to_finite(entry.get(f"{part}_s")) for part in ("compute", "transfer", "step"))
    if (
        compute is not None
        and transfer is not None
        and step is not None
        and abs(compute + transfer - step) < 0.01 * step
    ):
        return {"compute": compute, "transfer": transfer}
    return {} if step is None else {"step": step}  # compute and transfer overlap: their sum would be too large
